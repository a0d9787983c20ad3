"""Virtual time: a heap of what happens when."""

import heapq
from collections.abc import Callable


class VirtualClock:
    """Runs callbacks in order of time; those of the same time in the order they were planned."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time_s: float, callback: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._planned, (max(time_s, self.now_s), self._count, callback))

    def step(self) -> bool:
        """Jump to the next event and run it. False if there is none."""
        if not self._planned:
            return False
        self.now_s, _, callback = heapq.heappop(self._planned)
        self.events += 1
        callback()
        return True
