"""The picture of a rehearsal: what every engine held over time, and what the trainer did meanwhile."""

from pathlib import Path
from typing import Any

import numpy as np

from .timeline import StepSpan, Timeline

PHASES = {"rollout": "#eef3fc", "log-probs": "#fdf3d8", "training": "#dff3ee", "weight update": "#f0dcf0"}
STOP = "#888888"
PANELS = (("running requests", "running"), ("KV cache [tokens]", "kv_tok"), ("waiting in the engine", "waiting"))
MOST_NAMED = 10  # engines: the colours of more are not told apart


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
