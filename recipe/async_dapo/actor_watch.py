"""Tells of the death of actors that are needed later, or that others wait for."""

import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError

from .logs import place_of

logger = logging.getLogger(__name__)

LOOK_S = 2.0  # between two looks


class ActorDied(RuntimeError):
    """The run cannot go on without an actor that is dead."""


class ActorWatch:
    """Looks at actors, and interrupts a thread when one is dead.

    Args:
        actors: name -> actor.
        main: the thread.
    """

    def __init__(self, actors: Mapping[str, ActorHandle], main: threading.Thread) -> None:
        self._actors = actors
        self._main = main
        self._over = threading.Event()
        self.death: str | None = None
        self._thread = threading.Thread(target=self._watch, name="watch-actors", daemon=True)

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
                    self._report(f"{name} died: {death}")
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
        text = str(error)
        return text if error.actor_init_failed else text.split("\n", 1)[0] + place_of(text)
    return None


@contextmanager
def watched(actors: Mapping[str, ActorHandle]) -> Iterator[None]:
    """For the main thread: whatever it does ends when one of them is dead.

    Args:
        actors: by the names that they are told with.

    Raises:
        ActorDied: naming the actor.
    """
    watch = ActorWatch(actors, threading.current_thread())
    before = signal.signal(signal.SIGUSR1, _interrupt)
    watch.begin()
    try:
        yield
    except BaseException as error:  # also what others made of the interruption, or of the actor's silence
        if watch.death is None:
            raise
        raise ActorDied(watch.death) from error
    finally:
        watch.end()
        signal.signal(signal.SIGUSR1, before)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt  # the one exception that ends a wait within Ray
