"""Curves that answer whether a run has learned: accuracy, reward, length, entropy, k3, and what its steps took."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from ...async_dapo.record import keys
from .charts import INK, SERIES, SMALL, draw
from .run import Run

Series = Sequence[tuple[float, float]]
LENGTH, ENTROPY = "response_length/mean", "actor/entropy"
# Title -> what it is of a run, by step.
CURVES: Mapping[str, Callable[[Run], Series]] = {
    "Accuracy of validations": lambda run: run.accuracy(),
    "Mean reward of the trained groups": lambda run: run.series(keys.REWARD),
    "Mean length of the trained responses [tokens]": lambda run: run.series(LENGTH),
    "Entropy of the policy [nats a token]": lambda run: run.series(ENTROPY),
    "k3 of the trained tokens [nats a token]": lambda run: run.series(keys.K3_KL),
    "Seconds of a step": lambda run: run.series(keys.STEP_S),
}
ACCURACY, *_, STEP_S = CURVES
# What a step's seconds go to, from below.
PARTS = {
    "rollout": ((keys.ROLLOUT_S,), SERIES[4]),
    "training": ((*keys.LOG_PROB_PARTS, *keys.TRAIN_PARTS), SERIES[1]),
    "weights": ((keys.WEIGHTS_S,), SERIES[3]),
    "checkpoint": ((keys.SAVE_S,), SERIES[6]),
}


def curves(runs: Sequence[Run], prefix: str) -> str:
    """Of one run, or of several over each other, as HTML; a curve that no run has is left out.

    Args:
        prefix: begins the drawings' names, which are unique in a page.
    """
    figures = []
    for index, (title, series) in enumerate(CURVES.items()):
        lines = _lines(runs, title, series)
        if any(len(points) > 1 for points in lines.values()):
            stack = _stack(runs[0]) if title == STEP_S and len(runs) == 1 else None
            figures.append(_figure(f"{prefix}-{index}", title, lines, stack))
    return f'<div class="curves">{"".join(figures)}</div>' if figures else ""


def _lines(runs: Sequence[Run], title: str, series: Callable[[Run], Series]) -> dict[str, Series]:
    """Of a run with several data sources, each one's accuracy."""
    if len(runs) == 1:
        by_source = runs[0].accuracies() if title == ACCURACY else {}
        return dict(by_source) if len(by_source) > 1 else {"": series(runs[0])}
    names = Counter(run.name for run in runs)
    return {run.name if names[run.name] == 1 else str(run.folder): series(run) for run in runs}


def _stack(run: Run) -> dict[str, list[float]]:
    """Part -> its seconds in each step."""
    found = {
        part: [sum(run.by_step[step].get(key, 0.0) for key in names) for step in run.steps]
        for part, (names, _) in PARTS.items()
    }
    return {part: seconds for part, seconds in found.items() if any(seconds)}


def _figure(name: str, title: str, lines: Mapping[str, Series], stack: Mapping[str, Sequence[float]] | None) -> str:
    drawing = draw(name, title, lambda axes: _paint(axes, lines, stack), size=SMALL)
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}</figure>"


def _paint(axes: Any, lines: Mapping[str, Series], stack: Mapping[str, Sequence[float]] | None) -> None:
    from matplotlib.ticker import MaxNLocator

    if stack:
        steps = [step for line in lines.values() for step, _ in line]
        colours = [PARTS[part][1] for part in stack]
        axes.stackplot(steps, *stack.values(), labels=list(stack), colors=colours, alpha=0.6, linewidth=0)
    for (label, line), colour in zip(lines.items(), _colours(lines), strict=True):
        marks = "." if len(line) < 30 else ""
        steps, values = [step for step, _ in line], [value for _, value in line]
        axes.plot(steps, values, color=colour, linewidth=1.3, marker=marks, label=label or None)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("step")
    axes.margins(x=0.02)
    if stack or all(value >= 0 for line in lines.values() for _, value in line):
        axes.set_ylim(bottom=0)
    if stack or len(lines) > 1:
        axes.figure.legend(loc="outside upper left", ncols=2, borderaxespad=0.1, columnspacing=1.0, handlelength=1.0)


def _colours(lines: Mapping[str, Series]) -> Iterator[str]:
    if len(lines) == 1:
        yield INK
        return
    for index, _ in enumerate(lines):
        yield SERIES[index % len(SERIES)]
