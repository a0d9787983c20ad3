"""What every engine of a rehearsal held over time, and when its steps and rollouts began and ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...async_dapo.record.run_files import read_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpan:
    """When the parts of a training step began and ended [virtual s]."""

    began_s: float  # the end of the step before, or of the validation after it
    rollout_began_s: float
    rollout_ended_s: float
    ended_s: float

    @property
    def step_s(self) -> float:
        return self.ended_s - self.began_s

    @property
    def rollout_s(self) -> float:
        return self.rollout_ended_s - self.rollout_began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What engines and trainer did when, from the records of a run.

    Samples: [T] times and [T, engines] of what every engine held. Spans by step.
    """

    time_s: np.ndarray
    held: np.ndarray  # running and waiting requests
    late_s: list[list[float]]  # of the changes of a batch since the sample before
    steps: dict[int, StepSpan]
    trainer_late_by_step: dict[int, float]  # at the step's end [virtual s]

    @classmethod
    def load(cls, engines_file: Path, phases_file: Path) -> "Timeline":
        samples = read_lines(engines_file)
        engines = max(len(sample["running"]) for sample in samples)
        samples = [sample for sample in samples if len(sample["running"]) == engines]
        phases = read_lines(phases_file)
        return cls(
            time_s=np.array([sample["time_s"] for sample in samples]),
            held=np.array([sample["running"] for sample in samples]) + [sample["waiting"] for sample in samples],
            late_s=[sample["late_s"] for sample in samples],
            steps=_spans(phases),
            trainer_late_by_step={line["step"]: line["late_s"] for line in phases if line["phase"] == "end"},
        )

    def idle_between(self, began_s: float, ended_s: float) -> float:
        """Empty capacity of the engines, of what was used at the peak [0-1]."""
        inside = (self.time_s >= began_s) & (self.time_s <= ended_s)
        held = self.held[inside].sum(axis=1)
        return float(1 - held.mean() / held.max()) if held.size and held.max() else 0.0

    def lateness_between(self, began_s: float, ended_s: float) -> list[float]:
        inside = zip(self.time_s, self.late_s, strict=True)
        return [late for time_s, late_s in inside if began_s <= time_s <= ended_s for late in late_s]

    def trainer_late_s(self, first: int, last: int) -> float:
        """Of the trainer, in these steps and before each: how much longer than modelled its own work took."""
        steps = range(first, last + 1)
        between_s = sum(self.steps[step].rollout_began_s - self.steps[step].began_s for step in steps)
        return between_s + sum(self.trainer_late_by_step[step] for step in steps)


def _spans(phases: list[dict[str, Any]]) -> dict[int, StepSpan]:
    """Of the steps that ended."""
    at: dict[int, dict[str, float]] = {}
    for line in phases:
        at.setdefault(line["step"], {})[line["phase"]] = line["time_s"]
    return {
        step: StepSpan(
            began_s=_began_s(at.get(step - 1, {}), times),
            rollout_began_s=times["rollout"],
            rollout_ended_s=times["log_prob"],
            ended_s=times["end"],
        )
        for step, times in at.items()
        if "end" in times
    }


def _began_s(before: dict[str, float], own: dict[str, float]) -> float:
    return before.get("validated", before["end"]) if "end" in before else own["rollout"]
