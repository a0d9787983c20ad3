"""What is counted of calls: by their names, and how many trajectories wait for some over time."""

import math
from dataclasses import dataclass, field
from typing import Self

from .summed import Summed

STEP = 1.1  # between two durations that are told apart
SHORTEST_S = 1e-4  # shorter ones are taken for this long
MOST_SAMPLES = 256  # of a round


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFigures(Summed):
    """Calls of one name, in a few numbers however many they are."""

    LARGEST = ("longest_s",)

    calls: int = 0
    failed: int = 0  # of these: raised, or took too long
    longest_s: float = 0.0
    durations: dict[int, int] = field(default_factory=dict)  # power of `STEP` seconds -> calls

    @classmethod
    def of(cls, seconds: float, *, is_failed: bool) -> Self:
        """One call. 0 s: how long it took is not known."""
        power = round(math.log(max(seconds, SHORTEST_S), STEP))
        return cls(calls=1, failed=int(is_failed), longest_s=seconds, durations={power: 1} if seconds else {})

    @property
    def median_s(self) -> float:
        """To 5 %; 0 where no duration is known."""
        half = sum(self.durations.values()) / 2
        for power in sorted(self.durations):
            half -= self.durations[power]
            if half <= 0:
                return min(STEP**power, self.longest_s)
        return 0.0


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
