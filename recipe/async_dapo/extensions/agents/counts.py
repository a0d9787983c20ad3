"""What is counted of calls, and how many trajectories are idle, as they wait for some, over time."""

import time
from dataclasses import dataclass, field

from ...config.extensions import AGENTS
from ...core.summed import Summed
from ...core.trajectory import RoundCounts
from ...record.call_figures import CallFigures

MOST_SAMPLES = 256  # of a round


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCounts(Summed):
    """The calls of trajectories in a round: an entry of `RoundCounts.of_extensions`."""

    made: int = 0
    replayed: int = 0
    carried: int = 0  # ran on when the stop interrupted their trajectories
    unknown: int = 0
    diverged: int = 0  # recorded ones that the loop did not come to again
    answered: int = 0  # of tools and other services; without rewards and what the record answers
    failed: int = 0  # of these: raised, or took too long
    kept_loops: int = 0  # agent loops that rest in their workers over the stop
    seconds: float = 0.0  # that trajectories which have ended spent in calls, of whatever round
    by_name: dict[str, CallFigures] = field(default_factory=dict)  # those that were answered
    # Trajectories of each worker that are idle, from each time on [s since the epoch].
    idle: dict[int, tuple[tuple[float, int], ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, counts: RoundCounts) -> "CallCounts":
        own: CallCounts = counts.of_extensions.get(AGENTS, NONE)
        return own


NONE = CallCounts()


class CountSamples:
    """A count over a round, in a bounded number of samples (time, count): at first one for each change. When there are
    too many, every second one is dropped, and from then on half as many are taken.
    """

    def __init__(self, limit: int = MOST_SAMPLES) -> None:
        self._limit = limit
        self._begin([])

    def _begin(self, samples: list[tuple[float, int]]) -> None:
        self._samples = samples
        self._newest = samples[-1] if samples else None
        self._every, self._changes = 1, 0
        self._is_all_0 = not any(count for _, count in samples)

    def add(self, time_s: float, count: int) -> None:
        """What it is from now on."""
        if self._newest is not None and self._newest[1] == count:
            return
        self._newest = (time_s, count)
        self._is_all_0 = self._is_all_0 and count == 0  # samples may have left out all that was not
        if self._changes % self._every == 0:
            self._samples.append(self._newest)
        self._changes += 1
        if len(self._samples) > self._limit:
            del self._samples[1::2]
            self._every *= 2

    def take(self, now_s: float) -> tuple[tuple[float, int], ...]:
        """In order of time, since it was asked last, with what it is now; nothing if it was always 0."""
        taken, is_all_0 = self._samples, self._is_all_0
        if self._newest is not None and taken[-1] != self._newest:
            taken.append(self._newest)
        self._begin([] if self._newest is None else [(now_s, self._newest[1])])
        return () if is_all_0 else (*taken, *self._samples)


class IdleTrajectories:
    """Those of a worker that wait for calls."""

    def __init__(self) -> None:
        self._now: set[object] = set()
        self._samples = CountSamples()

    def note(self, one: object, *, is_idle: bool) -> None:
        (self._now.add if is_idle else self._now.discard)(one)
        self._samples.add(time.time(), len(self._now))

    def take(self) -> tuple[tuple[float, int], ...]:
        """How many there were over time, since this was asked last; nothing where none was idle."""
        return self._samples.take(time.time())
