"""Signals that ask a run to end, Ctrl-C and SIGTERM: whatever the driver does then ends.

Within a call of Ray's, only `KeyboardInterrupt` ends a wait and arrives as what it was: a `SystemExit`, which Ray's own
handler of SIGTERM raises, becomes another one with code 1.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .containment import Interrupted


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
