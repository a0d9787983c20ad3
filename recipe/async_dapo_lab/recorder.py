"""What the lab records of a run beside the recipe's record: for the report and the planner.

`async_dapo.recorder` names the class; `async_dapo_lab.train` sets it.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..async_dapo.core.concurrency import PackedSamples
from ..async_dapo.engines.load_balancer import LoadBalancerStats
from ..async_dapo.record import keys
from ..async_dapo.rollout.reports import RoundRecord
from ..async_dapo.training.recorder import Recorder
from .report.health import Hints
from .report.lengths import length_lines
from .report.record import LabRecord
from .report.timeline import Spans, StepTimeline

logger = logging.getLogger(__name__)


class LabRecorder(Recorder):
    """Records engines and trainer over time and all lengths, and logs hints: with every step, what it has collected."""

    def __init__(self) -> None:
        super().__init__()
        self._spans, self._hints = Spans(), Hints()
        self._samples: defaultdict[str, list[PackedSamples]] = defaultdict(list)
        self._lengths: list[Mapping[str, Any]] = []
        self._record: LabRecord | None = None

    def round_closed(self, step: int, record: RoundRecord) -> None:
        super().round_closed(step, record)
        self._lengths += length_lines(step, record.summary.outcomes)

    def engines_asked(self, balancer: LoadBalancerStats) -> None:
        for server, load in balancer.loads.items():
            if load.samples:
                self._samples[server].append(load.samples)

    def begin_phase(self, name: str) -> None:
        self._spans.begin(name, time.time())

    def end_phase(self) -> None:
        self._spans.end(time.time())

    def begin_record(self, folder: Path, *, started_s: float, first_step: int) -> None:
        self._record = LabRecord(folder, started_s=started_s, first_step=first_step)

    def log(self, data: Mapping[str, Any], step: int) -> None:
        super().log(data, step)
        taken, (lengths, self._lengths) = self._take_timeline(), (self._lengths, [])
        if self._record is not None:
            self._record.add(step, taken, lengths=lengths)
        if keys.STEP_S in data and (hint := self._hints.of_step(step, data)) is not None:
            logger.info("step %d: hint: %s", step, hint)

    def _take_timeline(self) -> StepTimeline:
        engines = {server: [one for part in parts for one in part.unpack()] for server, parts in self._samples.items()}
        self._samples.clear()
        return StepTimeline(spans=self._spans.take(), engines=engines)
