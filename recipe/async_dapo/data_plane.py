"""TransferQueue's life, from start to end: whether it has places, and what notices that a part of it is dead."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf, open_dict

from .config.derived import all_gpus, training_gpus
from .config.values import ConfigError
from .runtime.actor_watch import watched

_CONTROLLER, _NAMESPACE = "TransferQueueController", "transfer_queue"  # its actor has one name on a whole cluster
NODES_WITH = "CPU"  # a resource, which a head may lack: no actor of the queue could start there
_STORED_BY_ACTORS, _STORAGE = "SimpleStorage", "TransferQueueStorageUnit#"  # and a number, in the run's namespace


# What Ray's CPUs are taken by, apart from the storage units: the first actor and the queue's controller; and, for each
# GPU, verl's training ranks with the engines beside them, and engines with GPUs of their own.
_FIRST_ACTORS, _A_TRAINING_GPU, _AN_ENGINE_GPU = 2, 3, 2


def check_cpus(config: DictConfig) -> None:
    """See that every storage unit gets its CPU: each has a node that is chosen for it, and would wait there in silence.
    Called in the first actor, which has a CPU of its node.

    Raises:
        ConfigError: when there are too many for the CPUs that Ray has.
    """
    if config.transfer_queue.backend.storage_backend != _STORED_BY_ACTORS:
        return
    alive = {node["NodeID"]: node["Resources"].get(NODES_WITH, 0) for node in ray.nodes() if node["Alive"]}
    nodes = [cpus for cpus in alive.values() if cpus]
    here = ray.get_runtime_context().get_node_id()
    least = min((cpus - (node == here) for node, cpus in alive.items() if cpus), default=0)
    gpus = training_gpus(config)
    others = _FIRST_ACTORS + _A_TRAINING_GPU * gpus + _AN_ENGINE_GPU * (all_gpus(config) - gpus)
    room = int(min(sum(nodes) - others, len(nodes) * least))
    if (units := config.transfer_queue.backend[_STORED_BY_ACTORS].num_data_storage_units) > room:
        raise ConfigError(
            f"transfer_queue.backend.{_STORED_BY_ACTORS}.num_data_storage_units",
            units,
            f"each takes a CPU, one node after the other, and Ray has {sum(nodes):g} on {len(nodes)} nodes, the "
            f"smallest with {min(nodes):g}, of which trainer and engines take {others}: "
            f"{f'set at most {room}, or start' if room > 0 else 'start'} Ray with more (ray start --num-cpus or "
            "ray_kwargs.ray_init.num_cpus)",
        )


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
    if config.backend.storage_backend == _STORED_BY_ACTORS:
        with open_dict(config):
            storage = config.backend[_STORED_BY_ACTORS]
            storage.required_node_resource = storage.get("required_node_resource") or NODES_WITH
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

    They take no notice of each other's death: a wait for one that is dead would last for minutes, without a word.

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
