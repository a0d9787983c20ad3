"""TransferQueue, verl's data plane, from its start to its end. `store.py` says what is kept in it."""

import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError

from .config import ConfigError

logger = logging.getLogger(__name__)

LOOK_S = 2.0  # between two looks at TransferQueue's actors
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


class QueueDied(RuntimeError):
    """An actor of TransferQueue is dead: the data of the step is gone."""


class QueueWatch:
    """Looks at TransferQueue's actors, which take no notice of each other's death: who waits for one that is dead would
    do so for minutes, and not be told why.

    Args:
        actors: name -> actor.
        main: the thread to interrupt.
    """

    def __init__(self, actors: Mapping[str, ActorHandle], main: threading.Thread) -> None:
        self._actors = actors
        self._main = main
        self._over = threading.Event()
        self.death: str | None = None
        self._thread = threading.Thread(target=self._watch, name="watch-queue", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        answers = {actor.__ray_ready__.remote(): name for name, actor in self._actors.items()}
        while not self._over.wait(LOOK_S):
            ready, _ = ray.wait(list(answers), num_returns=len(answers), timeout=0)
            for answer in ready:
                name = answers.pop(answer)
                if (death := _death(answer)) is not None:
                    self._report(f"TransferQueue's actor {name} died, and the data of the step with it: {death}")
                    return
                answers[self._actors[name].__ray_ready__.remote()] = name

    def _report(self, death: str) -> None:
        self.death = death
        logger.critical("%s", death)
        if not self._over.is_set() and self._main.ident is not None:
            signal.pthread_kill(self._main.ident, signal.SIGUSR1)


def _death(answer: ray.ObjectRef) -> str | None:
    try:
        ray.get(answer)
    except ActorUnavailableError:  # only the connection broke
        return None
    except RayActorError as error:
        return str(error).split("\n", 1)[0]
    return None


@contextmanager
def queue_watched(config: DictConfig) -> Iterator[None]:
    """For the main thread: whatever it does ends when TransferQueue, started with `config`, is dead.

    Raises:
        QueueDied: naming the actor.
    """
    actors = {_CONTROLLER: ray.get_actor(_CONTROLLER, namespace=_NAMESPACE)}
    if config.backend.storage_backend == _STORED_BY_ACTORS:
        names = [f"{_STORAGE}{number}" for number in range(config.backend[_STORED_BY_ACTORS].num_data_storage_units)]
        actors |= {name: ray.get_actor(name) for name in names}
    watch = QueueWatch(actors, threading.current_thread())
    before = signal.signal(signal.SIGUSR1, _interrupt)
    watch.begin()
    try:
        yield
    except BaseException as error:  # also what others made of the interruption, or of the queue's silence
        if watch.death is None:
            raise
        raise QueueDied(watch.death) from error
    finally:
        watch.end()
        signal.signal(signal.SIGUSR1, before)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt  # the one exception that ends a wait within Ray


def join_queue() -> None:
    """Use the queue that the trainer has started."""
    tq.init()


def end_queue() -> None:
    """By the process that has started it."""
    tq.close()
