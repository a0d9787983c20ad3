"""How much of the machine a run uses."""

import os
import time

import psutil


class CpuMeter:
    """CPU seconds of this process's descendants, those that have ended since the last look left out."""

    def __init__(self) -> None:
        self._used_s: dict[tuple[int, float], float] = {}
        self._began: tuple[float, float] | None = None

    def look(self) -> None:
        for process in psutil.Process().children(recursive=True):
            try:
                times = process.cpu_times()
                self._used_s[process.pid, process.create_time()] = times.user + times.system
            except psutil.NoSuchProcess:
                pass

    def begin(self) -> None:
        """What is used from now on counts."""
        self.look()
        self._began = time.monotonic(), sum(self._used_s.values())

    @property
    def share(self) -> float:
        """Of all cores, from `begin` to the last `look` [0-1]."""
        if self._began is None:
            return 0.0
        began_s, used_before_s = self._began
        wall_s = max(1e-9, time.monotonic() - began_s)
        return (sum(self._used_s.values()) - used_before_s) / wall_s / (os.cpu_count() or 1)
