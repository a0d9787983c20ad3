"""Memory and file descriptors of every process of a run, over time."""

import re
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import psutil

from .victims import TITLES, title_of

EVERY_S = 5.0
SETTLED_S = 60.0  # a process's first minute is imports and its first step
_OTHERS = {"Ray's GCS": r"\S*gcs_server\b", "driver": r"\S*python\S* -m benchmarks\.faults\b"}


@dataclass(slots=True)
class Growth:
    samples: list[dict[str, Any]] = field(default_factory=list)
    _due_s: float = 0.0

    def look(self, processes: list[psutil.Process]) -> None:
        if (now := time.monotonic()) < self._due_s:
            return
        self._due_s = now + EVERY_S
        for process in processes:
            part = _part_of(process)
            if part is not None and (sample := _sample(process)) is not None:
                self.samples.append({"part": part, "pid": process.pid, "s": now} | sample)

    def table(self) -> pd.DataFrame:
        """For each part the process that lived longest, in the order of their growth."""
        rows: list[dict[str, Any]] = []
        if not self.samples:
            return pd.DataFrame()
        for (part, _), of_one in pd.DataFrame(self.samples).groupby(["part", "pid"]):
            settled = of_one[of_one["s"] >= of_one["s"].min() + SETTLED_S]
            if len(settled) > 2:
                rows.append({"part": part, "seconds": settled["s"].max() - settled["s"].min()} | _slopes(settled))
        if not rows:
            return pd.DataFrame()
        groups = pd.DataFrame(rows).groupby("part")
        table = groups.apply(lambda lives: lives.loc[lives["seconds"].idxmax()], include_groups=False).round(2)
        table.insert(0, "processes", groups.size())
        return table.sort_values("mb_per_minute", ascending=False).reset_index()


def _slopes(samples: pd.DataFrame) -> dict[str, float]:
    minutes = samples["s"].to_numpy() / 60
    return {
        "mb": samples["mb"].iloc[-1],
        "mb_per_minute": float(np.polyfit(minutes, samples["mb"], 1)[0]),
        "descriptors": samples["descriptors"].iloc[-1],
        "descriptors_per_minute": float(np.polyfit(minutes, samples["descriptors"], 1)[0]),
    }


def _part_of(process: psutil.Process) -> str | None:
    title = title_of(process)
    return next((part for part, pattern in (TITLES | _OTHERS).items() if re.match(pattern, title)), None)


def _sample(process: psutil.Process) -> dict[str, float] | None:
    try:
        memory = process.memory_info()
        return {"mb": (memory.rss - memory.shared) / 1e6, "descriptors": process.num_fds()}
    except psutil.Error:
        return None
