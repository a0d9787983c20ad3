"""TransferQueue, verl's data plane, from its start to its end. `store.py` says what is kept in it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf

from .config import ConfigError
from .processes.actor_watch import watched

_CONTROLLER, _NAMESPACE = "TransferQueueController", "transfer_queue"  # its actor has one name on a whole cluster
_STORED_BY_ACTORS, _STORAGE = "SimpleStorage", "TransferQueueStorageUnit#"  # and a number, in the run's namespace


@contextmanager
def queue_starts(config: DictConfig) -> Iterator[None]:
    """TransferQueue's actors start while the context is open, in which to import what takes long; it is left when the
    queue can be used.

    Raises:
        ConfigError: another run on this Ray cluster uses it; joining it would mix the batches of both.
    """
    OmegaConf.resolve(config)
    with ThreadPoolExecutor(1, thread_name_prefix="start-queue") as beside:
        start = beside.submit(start_queue, config.transfer_queue)
        yield
        start.result()


def start_queue(config: DictConfig) -> None:
    """As `queue_starts`, and wait for it."""
    _refuse_queue_of_another_run()
    tq.init(config)
    _refuse_queue_of_another_run()  # two that start at the same moment both find none


def _refuse_queue_of_another_run() -> None:
    try:
        controller = ray.get_actor(_CONTROLLER, namespace=_NAMESPACE)
    except ValueError:
        return
    owner = controller._actor_id.job_id.hex()
    if owner != ray.get_runtime_context().get_job_id():
        raise ConfigError(
            "transfer_queue",
            f"that of Ray job {owner}",
            "another run on this Ray cluster uses TransferQueue, which serves one run a cluster; wait until that run "
            "has ended, or give this one a cluster of its own (RAY_ADDRESS)",
        )


@contextmanager
def queue_watched(config: DictConfig) -> Iterator[None]:
    """For the main thread: whatever it does ends when an actor of TransferQueue, started with `config`, is dead.

    They take no notice of each other's death: who waits for one that is dead would do so for minutes, and not be told.

    Raises:
        ActorDied: naming the actor.
    """
    actors = {_CONTROLLER: ray.get_actor(_CONTROLLER, namespace=_NAMESPACE)}
    if config.backend.storage_backend == _STORED_BY_ACTORS:
        names = [f"{_STORAGE}{number}" for number in range(config.backend[_STORED_BY_ACTORS].num_data_storage_units)]
        actors |= {name: ray.get_actor(name) for name in names}
    with watched({f"TransferQueue's actor {name}": actor for name, actor in actors.items()}):
        yield


def join_queue() -> None:
    """Use the queue that the trainer has started."""
    tq.init()


def end_queue() -> None:
    """By the process that has started it."""
    tq.close()
