"""Compressed time: C virtual seconds pass in one real second."""

import time
from collections.abc import Callable


class CompressedClock:
    """The virtual time of a rehearsal, the same in all of its processes.

    Args:
        speedup: virtual seconds in a real one (C) [> 0].
        origin_s: real time at virtual time 0 [s].
        real_s: real time [s].
    """

    def __init__(self, speedup: float, *, origin_s: float, real_s: Callable[[], float] = time.time) -> None:
        self.speedup = speedup
        self._origin_s = origin_s
        self._real_s = real_s

    def now_s(self) -> float:
        """Virtual seconds since the origin."""
        return (self._real_s() - self._origin_s) * self.speedup

    def real_until(self, virtual_s: float) -> float:
        """Real seconds until a virtual time; 0 if it is past."""
        return max(0.0, (virtual_s - self.now_s()) / self.speedup)
