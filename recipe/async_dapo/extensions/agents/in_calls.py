"""Whether a trajectory is in a call: others generate in its stead meanwhile."""

import asyncio
from collections.abc import Callable

from ...core.round import GroupEvent
from .counts import IdleTrajectories


class InCalls:
    """Whether a trajectory is in a call, and so leaves its place among those that generate to another. A context
    that is open while a call is under way; those of one trajectory may overlap, and outlive the round.

    Args:
        short_s: shorter waits are not reported [s].
        idle: those of the worker.
    """

    def __init__(self, short_s: float, idle: IdleTrajectories) -> None:
        self._short_s = short_s
        self._idle = idle
        self._notify: Callable[[GroupEvent], None] = lambda event: None
        self._open = 0
        self._is_idle = False
        self._timer: asyncio.TimerHandle | None = None

    def begin_round(self, notify: Callable[[GroupEvent], None]) -> None:
        """From now on `notify` is called when the trajectory has waited for `short_s`, and when it goes on."""
        self._notify = notify
        self._note(is_idle=False)
        if self._open:
            self._start()

    def __enter__(self) -> None:
        self._open += 1
        if self._open == 1:
            self._start()

    def __exit__(self, *_: object) -> None:
        self._open -= 1
        if self._open:
            return
        assert self._timer is not None
        self._timer.cancel()
        if self._is_idle:
            self._note(is_idle=False)
            self._notify(GroupEvent.GOES_ON)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._short_s, self._begin)

    def _begin(self) -> None:
        self._note(is_idle=True)
        self._notify(GroupEvent.IDLE)

    def _note(self, *, is_idle: bool) -> None:
        if is_idle is not self._is_idle:
            self._is_idle = is_idle
            self._idle.note(self, is_idle=is_idle)
