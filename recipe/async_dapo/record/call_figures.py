"""What the record of a run has of calls of one name."""

import math
from dataclasses import dataclass, field
from typing import Self

from ..core.summed import Summed

STEP = 1.1  # between two durations that are told apart
SHORTEST_S = 1e-4  # shorter ones are taken for this long


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
