"""Curves that answer whether a run has learned: accuracy, reward, length, entropy, k3, and what its steps took."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby, pairwise
from statistics import fmean
from typing import Any

from ...async_dapo.record import keys
from .charts import INK, SERIES, SMALL, draw, with_gaps
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
# The same of a run with several data sources: title -> the figure of each, where the run has them.
BY_SOURCE = {
    "Pass rate of each data source": "pass_rate",
    "Mean length of the trained responses of each [tokens]": "trained_length",
}
# What a step's seconds go to, from below.
PARTS = {
    "rollout": ((keys.ROLLOUT_S,), SERIES[4]),
    "training": ((*keys.LOG_PROB_PARTS, *keys.TRAIN_PARTS), SERIES[1]),
    "weights": ((keys.WEIGHTS_S,), SERIES[3]),
    "checkpoint": ((keys.SAVE_S,), SERIES[6]),
}
MOST_MARKED = 30  # points of a line
MOST_NAMES = len(SERIES)  # lines that have a colour and a name each
NAME_CHARS = 22  # in the legend


def curves(runs: Sequence[Run], prefix: str) -> str:
    """Of one run, or of several over each other, as HTML; a curve that no run has is left out.

    Args:
        prefix: begins the drawings' names, which are unique in a page.
    """
    drawn = [(title, _lines(runs, title, series)) for title, series in CURVES.items()]
    if len(runs) == 1:
        of_sources = [(title, _of_sources(runs[0], term)) for title, term in BY_SOURCE.items()]
        drawn[-1:-1] = [(title, lines) for title, lines in of_sources if len(lines) > 1]
    figures = []
    for index, (title, lines) in enumerate(drawn):
        if any(len(points) > 1 for points in lines.values()):
            stack = _stack(runs[0]) if title == STEP_S and len(runs) == 1 else {}
            figures.append(_figure(f"{prefix}-{index}", title, lines, stack))
    return f'<div class="curves">{"".join(figures)}</div>' if figures else ""


def _lines(runs: Sequence[Run], title: str, series: Callable[[Run], Series]) -> dict[str, Series]:
    """Of a run with several data sources, each one's accuracy."""
    if len(runs) == 1:
        by_source = runs[0].accuracies() if title == ACCURACY else {}
        return dict(by_source) if len(by_source) > 1 else {"": series(runs[0])}
    names = Counter(run.name for run in runs)
    return {run.name if names[run.name] == 1 else str(run.folder): series(run) for run in runs}


def _of_sources(run: Run, term: str) -> dict[str, Series]:
    """Of each that has logged it."""
    return {source: points for source, points in run.of_sources(term).items() if points}


def _stack(run: Run) -> dict[str, Series]:
    """Part -> its seconds, by step."""
    timed = [step for step, _ in run.series(keys.STEP_S)]
    found = {
        part: [(step, sum(run.by_step[step].get(key, 0.0) for key in names)) for step in timed]
        for part, (names, _) in PARTS.items()
    }
    return {part: points for part, points in found.items() if any(seconds for _, seconds in points)}


def _figure(name: str, title: str, lines: Mapping[str, Series], stack: Mapping[str, Series]) -> str:
    drawing = draw(name, title, lambda axes: _paint(axes, lines, stack), size=SMALL)
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}</figure>"


def _paint(axes: Any, lines: Mapping[str, Series], stack: Mapping[str, Series]) -> None:
    from matplotlib.ticker import MaxNLocator

    if stack:
        columns = [with_gaps(points, longest_steps(points)) for points in stack.values()]
        colours = [PARTS[part][1] for part in stack]
        steps, parts = columns[0][0], [seconds for _, seconds in columns]
        axes.stackplot(steps, *parts, labels=list(stack), colors=colours, alpha=0.6, linewidth=0)
    has_names = 1 < len(lines) <= MOST_NAMES
    names = short_names([*lines]) if has_names else [None] * len(lines)
    for name, line, colour in zip(names, lines.values(), _colours(len(lines)), strict=True):
        steps, values = with_gaps(line, longest_steps(line))
        style: dict[str, Any] = {"marker": ".", "markevery": None if len(line) < MOST_MARKED else alone(values)}
        axes.plot(steps, values, color=colour, linewidth=1.3, label=name, **style)
    if len(lines) > MOST_NAMES:
        mean = _mean(lines)
        axes.plot(*with_gaps(mean, longest_steps(mean)), color=INK, linewidth=1.8, label=f"mean of {len(lines)}")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("step")
    axes.margins(x=0.02)
    if stack or all(value >= 0 for line in lines.values() for _, value in line):
        axes.set_ylim(bottom=0)
    if stack or len(lines) > 1:
        axes.figure.legend(loc="outside upper left", ncols=2, borderaxespad=0.1, columnspacing=1.0, handlelength=1.0)


def longest_steps(points: Series) -> float:
    """The longest distance between two points of a line without a gap [steps]. What each step logs is missing where
    one has not; validations may come at other steps after a resume.
    """
    distances = sorted(later[0] - earlier[0] for earlier, later in pairwise(points))
    usual = distances[len(distances) // 2] if distances else 1.0
    return usual if usual <= 1 else 2 * usual


def alone(values: Sequence[float]) -> list[int]:
    """Places of points between two gaps, which no line shows."""
    runs, place, found = groupby(values, key=lambda value: value == value), 0, list[int]()
    for is_number, members in runs:
        count = len(list(members))
        if is_number and count == 1:
            found.append(place)
        place += count
    return found


def _mean(lines: Mapping[str, Series]) -> Series:
    """In the steps that all lines have."""
    by_step: dict[float, list[float]] = {}
    for line in lines.values():
        for step, value in line:
            by_step.setdefault(step, []).append(value)
    return [(step, fmean(values)) for step, values in sorted(by_step.items()) if len(values) == len(lines)]


def short_names(names: Sequence[str]) -> list[str]:
    """Without the parts at both ends that all have, and cut where they are still too long for the legend."""
    parts = [name.split("/") for name in names]
    for at, rest in ((-1, slice(-1)), (0, slice(1, None))):
        while len({of[at] for of in parts}) == 1 and all(len(of) > 1 for of in parts):
            parts = [of[rest] for of in parts]
    whole = ["/".join(of) for of in parts]
    cut = [_cut(name) for name in whole]
    return cut if len({*cut}) == len(cut) else whole


def _cut(name: str) -> str:
    half = (NAME_CHARS - 2) // 2
    return name if len(name) <= NAME_CHARS else f"{name[:half]}..{name[-half:]}"


def _colours(count: int) -> Iterator[str]:
    if count == 1:
        yield INK
        return
    for index in range(count):
        yield SERIES[index % len(SERIES)]
