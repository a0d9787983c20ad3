"""What a run's metrics file says while it grows: verl's file logger writes one JSON object per step."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from ...async_dapo.record.keys import STEP_S
from ..report.run import StepMetrics
from .progress import GrowingFile
from .task import DATA_SOURCE

ACCURACY = f"val-core/{DATA_SOURCE}/acc/mean@1"


@dataclass(slots=True)
class RunMetrics(StepMetrics):
    """Grows as the file does."""

    file: Path
    by_step: dict[int, dict[str, float]] = field(default_factory=dict)
    _lines: GrowingFile = field(init=False)

    def __post_init__(self) -> None:
        self._lines = GrowingFile(self.file)

    def read_new(self) -> list[int]:
        """Read the lines that have been completed since the last call; returns their steps."""
        steps = []
        for line in self._lines.new_lines():
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
