"""A load meter that keeps samples of what its engine holds, for the report's timeline: `LabRecorder` names it."""

import time
from dataclasses import asdict
from typing import Any

from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from ..async_dapo.engines.load_meter import LoadMeter
from .report.samples import LoadSamples, SampledLoad


class SamplingMeter(LoadMeter):
    def reset(self) -> None:
        super().reset()
        self._waiting: dict[int, int] = {}  # rank -> requests
        self._samples = LoadSamples()

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        super().record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
        if scheduler_stats is None:
            return
        held_back = scheduler_stats.num_skipped_waiting_reqs  # as while KV comes from host memory
        self._waiting[engine_idx] = scheduler_stats.num_waiting_reqs + held_back
        if self._samples.is_due():
            ranks = self._last.values()
            held, kv = sum(running for _, running, _ in ranks), max(usage for *_, usage in ranks)
            self._samples.add(self._last[engine_idx][0], held, sum(self._waiting.values()), kv)

    def load_of_round(self) -> SampledLoad:
        """By the time of day: those of all nodes go together."""
        samples = self._samples.packed(shift_s=time.time() - time.monotonic())
        return SampledLoad(**asdict(super().load_of_round()), samples=samples)
