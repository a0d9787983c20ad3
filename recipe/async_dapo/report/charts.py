"""The charts of a report: which figures they show, how they are drawn, and the same figures as a table."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .run import Point
from .svg import CARD, SERIES, Drawing, Size, draw

MOST_BARS = 40  # steps side by side; of longer runs, means over as many neighbours as it takes
MOST_TIPS = 60
MOST_ROWS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line, or a part of stacked bars, with the colour of its place in the chart."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What is drawn; `note` says in words what to look for."""

    name: str
    title: str
    unit: str
    series: Sequence[Series]
    note: str
    is_stacked: bool = False
    x_label: str = "step"
    marks: Sequence[float] = field(default_factory=tuple)  # dashed lines: limits of what is healthy

    @property
    def has_data(self) -> bool:
        return any(series.points for series in self.series)

    def svg(self, size: Size = CARD) -> str:
        paint: Callable[[Drawing], None] = self._bars if self.is_stacked else self._lines
        return draw(self.name, f"{self.title} [{self.unit}]", paint, size=size)

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of the same figures, by x; of long runs, every so many."""
        values = [dict(series.points) for series in self.series]
        all_x = sorted({x for points in values for x in points})
        every = -(-len(all_x) // MOST_ROWS)
        rows = [[_number(x), *(_number(points[x]) if x in points else "" for points in values)] for x in all_x[::every]]
        return [self.x_label, *(series.name for series in self.series)], rows

    def _lines(self, drawing: Drawing) -> None:
        axes = drawing.axes
        for index, series in enumerate(self.series):
            if not series.points:
                continue
            xs, ys = zip(*series.points, strict=True)
            colour = SERIES[index % len(SERIES)]
            few = len(xs) <= MOST_TIPS
            axes.plot(
                xs, ys, color=colour, label=series.name, linewidth=1.4, marker="o" if few else None, markersize=2.5
            )
            for x, y in series.points[:: -(-len(xs) // MOST_TIPS)]:
                [dot] = axes.plot([x], [y], "o", color=colour, markersize=9, alpha=0.0)
                drawing.tip(dot, f"{series.name}, {self.x_label} {_number(x)}: {_number(y)} {self.unit}")
        for mark in self.marks:
            axes.axhline(mark, color=SERIES[7], linewidth=0.9, linestyle="--")
        self._finish(drawing)

    def _bars(self, drawing: Drawing) -> None:
        binned = [(series.name, _binned(series.points)) for series in self.series]
        width = 0.85 * _spacing(binned[0][1])
        below: dict[float, float] = {}
        for index, (name, points) in enumerate(binned):
            bottoms = [below.get(x, 0.0) for x, _ in points]
            xs, ys = [x for x, _ in points], [y for _, y in points]
            bars = drawing.axes.bar(xs, ys, width, bottom=bottoms, color=SERIES[index % len(SERIES)], label=name)
            for bar, (x, y) in zip(bars, points, strict=True):
                drawing.tip(bar, f"{name}, {self.x_label} {_number(x)}: {_number(y)} {self.unit}")
                below[x] = below.get(x, 0.0) + y
        self._finish(drawing)

    def _finish(self, drawing: Drawing) -> None:
        axes = drawing.axes
        least = min((y for series in self.series for _, y in series.points), default=0.0)
        low, high = axes.get_ylim()
        axes.set_ylim(low if least < 0 else 0.0, high * 1.05 if high > 0 else 1.0)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.unit)
        if self.x_label == "step":
            axes.xaxis.get_major_locator().set_params(integer=True)
        if len(self.series) > 1:
            axes.figure.legend(
                loc="outside upper left", ncols=3, borderaxespad=0.1, columnspacing=1.0, handlelength=1.0
            )


def _binned(points: Sequence[Point]) -> list[Point]:
    """Means over neighbours, so that at most `MOST_BARS` are left."""
    size = max(1, -(-len(points) // MOST_BARS))
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(part[0][0], sum(y for _, y in part) / len(part)) for part in parts]


def _spacing(points: Sequence[Point]) -> float:
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(points)]
    return min(gaps, default=1.0)


def _number(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e9 else f"{value:.4g}"
