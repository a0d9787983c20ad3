"""Tells of the death of actors that are needed later, or that others wait for; not of engines, which have
`engines/lives.py`.
"""

import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from .containment import Interrupted
from .logs import place_of

logger = logging.getLogger(__name__)

LOOK_S = 2.0  # between two looks


class ActorDied(RuntimeError):
    """The run cannot go on without an actor that is dead."""


@contextmanager
def watched(actors: Mapping[str, ActorHandle]) -> Iterator[None]:
    """For the main thread: whatever it does ends when one of them is dead.

    Args:
        actors: by the names that they are told with.

    Raises:
        ActorDied: naming the actor.
    """
    main, over = threading.get_ident(), threading.Event()
    deaths: list[str] = []

    def watch() -> None:
        try:
            death = _first_death(actors, over)
        except Exception as error:  # whatever becomes of Ray: without a watch the run could wait for ever
            death = f"nobody sees any more whether {', '.join(actors)} live: {type(error).__name__}: {error}"
        if death is None:
            return
        deaths.append(death)
        logger.critical("%s", death)
        if not over.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, _interrupt)
    thread = threading.Thread(target=watch, name="watch-actors", daemon=True)
    thread.start()
    try:
        yield
    except BaseException as error:  # also what others made of the interruption, or of the actor's silence
        if not deaths:
            raise
        raise ActorDied(deaths[0]) from error
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def _first_death(actors: Mapping[str, ActorHandle], over: threading.Event) -> str | None:
    """Wait for the death of an actor: which one, and of what; None when `over` is set first."""
    answers = {actor.__ray_ready__.remote(): name for name, actor in actors.items()}
    while not over.wait(LOOK_S):
        ready, _ = ray.wait(list(answers), num_returns=len(answers), timeout=0)
        for answer in ready:
            name = answers.pop(answer)
            if (death := _death(answer)) is not None:
                return f"{name} died: {death}"
            answers[actors[name].__ray_ready__.remote()] = name
    return None


def _death(answer: ray.ObjectRef) -> str | None:
    try:
        ray.get(answer)
    except ActorUnavailableError:  # only the connection broke
        return None
    except RayActorError as error:
        text = str(error)
        return text if error.actor_init_failed else text.split("\n", 1)[0] + place_of(text)
    except RayError as error:  # of the answer, and not of the actor: it is asked again
        logger.debug("a look at an actor failed, and is repeated: %s: %s", type(error).__name__, error)
    return None


def _interrupt(number: int, frame: object) -> None:
    raise Interrupted  # a `KeyboardInterrupt`: nothing else ends a wait within Ray
