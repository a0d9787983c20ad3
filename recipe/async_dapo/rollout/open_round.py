"""The coordinator's open round: its groups, and who waits for something of it."""

import asyncio
from collections import deque
from dataclasses import dataclass

import ray

from ..core.milestones import Milestones
from ..core.round import Round, RoundSpec

VALIDATION_LINES = 4  # that a validation logs of its progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A group for a lane to run. `content` is never looked into here; see `parking.py`."""

    prompt_uid: str
    unfinished: int  # trajectories that are to be generated
    held_back: int = 0  # further ones, which start when it has become certain
    is_certain: bool = False  # its finished trajectories differ: it will be valid
    content: bytes | ray.ObjectRef  # the pickled PromptGroup, or where it is parked
    ages: tuple[int, ...] = ()  # of its trajectories, where it is parked
    has_begun: bool = False  # in an earlier round
    is_attached: bool = False  # requests of its that were frozen in their engines are still there
    home: int | None = None  # the worker where agent loops of it rest
    is_bound: bool = False  # some of those can only go on there


class OpenRound:
    """A round with its waiters."""

    def __init__(self, spec: RoundSpec) -> None:
        self.state = Round(spec)
        self.stops_engines = spec.stop_rule is not None
        self.tickets: dict[str, Ticket] = {}
        self.trajectories = 0
        self.milestones = Milestones(VALIDATION_LINES)
        self.stopped = asyncio.Event()
        self.engines_idle: asyncio.Future[float] | None = None
        self.changed = asyncio.Event()
        self._takers: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def next_start(self, worker: int) -> None:
        """Wait, in line, until this worker may start a group or nothing more will."""
        taker = worker, asyncio.get_running_loop().create_future()
        self._takers.append(taker)
        try:
            await taker[1]
        except asyncio.CancelledError:
            if taker in self._takers:
                self._takers.remove(taker)
            else:
                self.wake_taker()  # it was woken: the place is somebody else's now
            raise

    def wake_taker(self) -> None:
        """A taker that finds a group wakes the next one: who waits in vain is left asleep, however many they are."""
        for worker, future in self._takers:
            if not self.state.may_start:
                return
            if not future.done() and self.state.may_start_on(worker):  # else it has been cancelled just now
                self._takers.remove((worker, future))
                future.set_result(None)
                return

    def notify(self) -> None:
        """Wake the trainer, and takers; the event is replaced, so that nobody misses the next one."""
        self.changed.set()
        self.changed = asyncio.Event()
        self.wake_taker()
        if self.state.is_halted:
            self._wake_all()

    def release(self) -> None:
        """Nobody waits in a round that is over."""
        self.stopped.set()
        self.changed.set()
        self._wake_all()

    def _wake_all(self) -> None:
        while self._takers:
            _, future = self._takers.popleft()
            if not future.done():
                future.set_result(None)
