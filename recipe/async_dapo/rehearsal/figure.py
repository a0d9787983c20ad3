"""The picture of a rehearsal: what every engine held over time, and what the trainer did meanwhile."""

from pathlib import Path
from typing import Any

import numpy as np

from .report import Rehearsal

ROLLOUT, LOG_PROB, TRAIN = "#eef3fc", "#fdf3d8", "#dff3ee"
PANELS = (("running requests", "running"), ("KV cache [tokens]", "kv_tok"), ("waiting in the engine", "waiting"))


def draw_timeline(rehearsal: Rehearsal, path: Path) -> None:
    """A panel for each quantity, a line for each engine; the ground is blue in rollouts, green in training."""
    from matplotlib.figure import Figure

    timeline = rehearsal.timeline
    began_s = min(span.rollout_began_s for span in timeline.steps.values())
    figure = Figure(figsize=(13, 8), layout="constrained")
    axes = figure.subplots(len(PANELS), 1, sharex=True)
    inside = timeline.time_s >= began_s
    for axis, (label, name) in zip(axes, PANELS, strict=True):
        _shade(axis, rehearsal, began_s)
        values = getattr(timeline, name)[inside]
        axis.plot(timeline.time_s[inside] - began_s, values, linewidth=0.8)
        axis.set_ylabel(f"{label}\nper engine")
        axis.set_ylim(0, max(1, 1.05 * np.max(values, initial=0)))
    axes[-1].set_xlabel("virtual seconds")
    mean = rehearsal.mean
    figure.suptitle(f"{rehearsal.system}: {mean.step_s:.0f} s a step, {mean.bound_share:.2f} of the bound")
    figure.savefig(path, dpi=100)


def _shade(axis: Any, rehearsal: Rehearsal, began_s: float) -> None:
    for span in rehearsal.timeline.steps.values():
        for start, stop, colour in (
            (span.rollout_began_s, span.rollout_ended_s, ROLLOUT),
            (span.rollout_ended_s, span.train_began_s, LOG_PROB),
            (span.train_began_s, span.ended_s, TRAIN),
        ):
            axis.axvspan(start - began_s, stop - began_s, color=colour, linewidth=0)
        axis.axvline(span.rollout_ended_s - began_s, color="#888888", linewidth=0.5)
