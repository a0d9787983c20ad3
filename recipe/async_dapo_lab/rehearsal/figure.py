"""The picture of a rehearsal: what every engine held over time, and what the trainer did meanwhile."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...async_dapo.record.run_files import read_lines

PHASES = {"rollout": "#eef3fc", "log-probs": "#fdf3d8", "training": "#dff3ee", "weight update": "#f0dcf0"}
STOP = "#888888"
PANELS = (("running requests", "running"), ("KV cache [tokens]", "kv_tok"), ("waiting in the engine", "waiting"))
MOST_NAMED = 10  # engines: the colours of more are not told apart


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpan:
    """When the parts of a training step began and ended [virtual s]."""

    began_s: float  # the end of the step before, or of the validation after it
    rollout_began_s: float
    stopped_s: float  # the batch was there
    rollout_ended_s: float
    train_began_s: float
    update_began_s: float
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
    running: np.ndarray
    waiting: np.ndarray
    kv_tok: np.ndarray
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
            running=np.array([sample["running"] for sample in samples]),
            waiting=np.array([sample["waiting"] for sample in samples]),
            kv_tok=np.array([sample["kv_tok"] for sample in samples]),
            late_s=[sample["late_s"] for sample in samples],
            steps=_spans(phases),
            trainer_late_by_step={line["step"]: line["late_s"] for line in phases if line["phase"] == "end"},
        )

    def idle_between(self, began_s: float, ended_s: float) -> float:
        """Empty places in the engines, of those used at the peak [0-1]."""
        inside = (self.time_s >= began_s) & (self.time_s <= ended_s)
        held = (self.running + self.waiting)[inside].sum(axis=1)
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
            stopped_s=times["stop"],
            rollout_ended_s=times["log_prob"],
            train_began_s=times["train"],
            update_began_s=times["update"],
            ended_s=times["end"],
        )
        for step, times in at.items()
        if "end" in times
    }


def _began_s(before: dict[str, float], own: dict[str, float]) -> float:
    return before.get("validated", before["end"]) if "end" in before else own["rollout"]


def draw_timeline(timeline: Timeline, path: Path, *, title: str) -> None:
    """A panel for each quantity, a line for each engine; the ground has the colour of what the trainer does."""
    from matplotlib.figure import Figure

    began_s = min(span.rollout_began_s for span in timeline.steps.values())
    figure = Figure(figsize=(13, 8), layout="constrained")
    axes = figure.subplots(len(PANELS), 1, sharex=True)
    inside = timeline.time_s >= began_s
    for axis, (label, name) in zip(axes, PANELS, strict=True):
        for span in timeline.steps.values():
            _shade(axis, span, began_s)
        values = getattr(timeline, name)[inside]
        lines = axis.plot(timeline.time_s[inside] - began_s, values, linewidth=0.8)
        axis.set_ylabel(f"{label}\nper engine")
        axis.set_ylim(0, max(1, 1.05 * np.max(values, initial=0)))
    axes[-1].set_xlabel("virtual seconds")
    named = {f"engine {rank}": line for rank, line in enumerate(lines)} if len(lines) <= MOST_NAMED else {}
    legend = _legend() | named
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=len(PHASES) + 1)
    figure.suptitle(title)
    figure.savefig(path, dpi=100)


def _shade(axis: Any, span: StepSpan, began_s: float) -> None:
    times = (span.rollout_began_s, span.rollout_ended_s, span.train_began_s, span.update_began_s, span.ended_s)
    for start, end, colour in zip(times, times[1:], PHASES.values(), strict=False):
        axis.axvspan(start - began_s, end - began_s, color=colour, linewidth=0)
    axis.axvline(span.stopped_s - began_s, color=STOP, linewidth=0.5)


def _legend() -> dict[str, Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return {name: Patch(color=colour) for name, colour in PHASES.items()} | {"stop": Line2D([], [], color=STOP)}
