"""What a run's metrics file says while it grows: verl's file logger writes one JSON object per step."""

import json
from dataclasses import dataclass, field

from ...async_dapo.record.keys import STEP_S
from ..report.run import StepMetrics
from .task import DATA_SOURCE
from .train_log import GrowingFile

ACCURACY = f"val-core/{DATA_SOURCE}/acc/mean@1"


@dataclass(slots=True)
class RunMetrics(StepMetrics, GrowingFile):
    """Grows as the file does."""

    by_step: dict[int, dict[str, float]] = field(default_factory=dict)

    def read_new(self) -> list[int]:
        """Read the lines that have been completed since the last call; returns their steps."""
        steps = []
        for line in self.new_lines():
            record = json.loads(line)
            self.by_step.setdefault(record["step"], {}).update(record["data"])
            steps.append(record["step"])
        return steps

    @property
    def steps(self) -> list[dict[str, float]]:
        """Metrics of every training step, in order."""
        return [values for _, values in sorted(self.by_step.items()) if STEP_S in values]

    @property
    def trained_steps(self) -> int:
        return len(self.steps)
