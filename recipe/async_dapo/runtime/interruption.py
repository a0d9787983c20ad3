"""Signals that ask a run to end, Ctrl-C and SIGTERM: whatever the driver does then ends, and it says where the run was.

Within a call of Ray's, only `KeyboardInterrupt` ends a wait and arrives as what it was: a `SystemExit`, which Ray's own
handler of SIGTERM raises, becomes another one with code 1.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .containment import Interrupted

PATIENCE_S = 2.0  # for a cluster to say where the run was; it may have been told to end, too
_STEP_KEY = b"async_dapo_step_of_job_"


@dataclass(slots=True)
class Stop:
    """The signal that has arrived, if one has."""

    number: int | None = None


_handlers: dict[int, object] = {}  # those that are in force


@contextmanager
def interruptible(*numbers: signal.Signals) -> Iterator[Stop]:
    """While it is open, these signals raise `Interrupted` in the main thread. On other threads it does nothing.

    Returns:
        Which of them has arrived: Ray makes a plain `KeyboardInterrupt` of ours.
    """
    stop = Stop()

    def interrupt(number: int, frame: object) -> None:
        stop.number = number
        raise Interrupted

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before, outer = {number: signal.signal(number, interrupt) for number in numbers}, dict(_handlers)
    _handlers.update(dict.fromkeys(numbers, interrupt))
    try:
        yield stop
    finally:
        _handlers.clear()
        _handlers.update(outer)
        for number, handler in before.items():
            signal.signal(number, handler)


def stay_interruptible() -> None:
    """Put back what `ray.init` has replaced by handlers of its own."""
    for number, handler in _handlers.items():
        signal.signal(number, handler)  # type: ignore[arg-type]


def note_step(step: int, total_steps: int) -> None:
    """The trainer begins a step; the driver can say so, whatever becomes of the trainer."""
    import ray

    if ray.is_initialized():
        _step_store()._internal_kv_put(_step_key(), f"{step} of {total_steps}".encode())


def noted_step() -> str | None:
    """The step that the trainer of this job has begun last, for example `7 of 300`; None if nobody can say."""
    import ray

    if not ray.is_initialized():
        return None
    key, found = _step_key(), list[bytes | None]()
    asking = threading.Thread(target=lambda: found.append(_step_store()._internal_kv_get(key)), daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return found[0].decode() if found and found[0] is not None else None


def _step_store() -> Any:
    """Of the cluster's head, which needs no actor that could answer."""
    from ray.experimental import internal_kv

    return internal_kv


def _step_key() -> bytes:
    import ray

    return _STEP_KEY + ray.get_runtime_context().get_job_id().encode()
