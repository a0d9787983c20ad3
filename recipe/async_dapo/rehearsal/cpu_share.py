"""How much of the machine a run uses."""

import os
import time
from pathlib import Path

import psutil

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds of CPU time in every so many


def usable_cores() -> float:
    """Cores of this process's affinity, or of its container's quota where that is less."""
    cores = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = QUOTA.read_text().split()
        return min(cores, int(quota) / int(period))
    except (OSError, ValueError):  # no container, or "max"
        return cores


class CpuMeter:
    """CPU seconds of this process's descendants, those that have ended since the last look left out."""

    def __init__(self) -> None:
        self._used_s: dict[tuple[int, float], float] = {}
        self._looked_s = 0.0
        self._began: tuple[float, float] | None = None

    def look(self) -> None:
        self._looked_s = time.monotonic()
        for process in psutil.Process().children(recursive=True):
            try:
                times = process.cpu_times()
                self._used_s[process.pid, process.create_time()] = times.user + times.system
            except psutil.NoSuchProcess:
                pass

    def begin(self) -> None:
        """What is used from now on counts."""
        self.look()
        self._began = self._looked_s, sum(self._used_s.values())

    @property
    def share(self) -> float:
        """Of all usable cores, from `begin` to the last `look` [0-1]."""
        if self._began is None:
            return 0.0
        began_s, used_before_s = self._began
        wall_s = max(1e-9, self._looked_s - began_s)
        return (sum(self._used_s.values()) - used_before_s) / wall_s / usable_cores()
