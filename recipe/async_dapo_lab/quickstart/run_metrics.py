"""What a run's metrics file says while it grows: verl's file logger writes one JSON object per step."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from ...async_dapo.record.keys import STEP_S
from ..report.run import StepMetrics
from .task import DATA_SOURCE
from .train_log import GrowingFile

ACCURACY = f"val-core/{DATA_SOURCE}/acc/mean@1"


@dataclass(slots=True)
class RunMetrics(StepMetrics, GrowingFile):
    """Grows as the file does."""

    by_step: dict[int, dict[str, float]] = field(default_factory=dict)
    new_steps: int = 0  # trained since the start
    _known: frozenset[bytes] = frozenset()

    @classmethod
    def after(cls, file: Path) -> "RunMetrics":
        """Of a file that may be there from an earlier start: a run that goes on begins its own file with the earlier
        lines, which are not new."""
        return cls(file=file, _known=frozenset(cls(file=file).new_lines()))

    def read_new(self) -> list[int]:
        """Read the lines that have been completed since the last call; returns the steps of the new ones."""
        return [step for step, _ in self.read_lines()]

    def read_lines(self) -> list[tuple[int, dict[str, float]]]:
        """The same, with what each of these lines holds: a step that a run goes on from is validated again."""
        new = []
        for line in self.new_lines():
            record = json.loads(line)
            self.by_step.setdefault(record["step"], {}).update(record["data"])
            if line not in self._known:
                new.append((record["step"], record["data"]))
                self.new_steps += STEP_S in record["data"]
        return new

    @property
    def steps(self) -> list[dict[str, float]]:
        """Metrics of every training step, in order."""
        return [values for _, values in sorted(self.by_step.items()) if STEP_S in values]

    @property
    def trained_steps(self) -> int:
        return len(self.steps)
