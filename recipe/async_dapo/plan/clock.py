"""Virtual time: a heap of what happens when."""

import gc
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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

    def run_until(self, time_s: float) -> None:
        """Run what is planned up to then, and be there."""
        while self._planned and self._planned[0][0] <= time_s:
            self.step()
        self.now_s = time_s


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A round makes many objects and hardly any garbage: looking for it would take a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
