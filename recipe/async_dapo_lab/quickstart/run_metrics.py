"""What a run's metrics file says: verl's file logger writes one JSON object per step."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...async_dapo.record.console import accuracy_name, accuracy_of
from ...async_dapo.record.keys import STEP_S
from .progress import GrowingFile
from .task import DATA_SOURCE

ACCURACY = f"val-core/{DATA_SOURCE}/acc/mean@1"


@dataclass(slots=True)
class RunMetrics:
    """Grows as the file does. The validation before training is step 0 and no training step."""

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

    def series(self, key: str) -> Iterator[tuple[int, float]]:
        for step, values in sorted(self.by_step.items()):
            if key in values:
                yield step, values[key]

    def accuracy(self) -> list[tuple[int, float]]:
        """Of the validations, whatever their data source."""
        return [(step, of) for step, values in sorted(self.by_step.items()) if (of := accuracy_of(values)) is not None]

    def accuracy_name(self) -> str:
        """Which metric that is; empty without a validation."""
        return next((name for values in self.by_step.values() if (name := accuracy_name(values))), "")

    def last(self, key: str) -> float | None:
        """The newest value; None where the run never logged it."""
        return max(self.series(key), default=(0, None))[1]
