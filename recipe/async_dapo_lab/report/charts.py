"""The charts of a report: which figures they show, how they are drawn, and the same figures as a table.

They are inline SVG, drawn by matplotlib: no script, no network, and colours that follow the page's theme. A chart is
drawn at the size it is shown at, `CARD` or `WIDE` and `NARROW`, so that its text is never scaled down.
"""

import io
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from .run import Point

Size = tuple[int, int]  # [CSS pixels]
CARD: Size = (360, 240)
WIDE: Size = (1180, 330)
NARROW: Size = (360, 330)

_PIXELS_PER_INCH = 72.0
# Drawn in these, shown in the page's own: `--ink`, `--grid`, and a colour for each series.
INK, GRID = "#010101", "#020202"
SERIES = tuple(f"#0303{index:02x}" for index in range(8))
_VARIABLES = {INK: "var(--ink)", GRID: "var(--grid)"} | {
    colour: f"var(--series-{index})" for index, colour in enumerate(SERIES)
}
_SVG = "http://www.w3.org/2000/svg"

MOST_BARS = 40  # steps side by side; of longer runs, means over as many neighbours as it takes
MOST_MARKERS = 60
MOST_ROWS = 400


def draw(name: str, title: str, paint: Callable[[Any], None], *, size: Size = CARD) -> str:
    """An `<svg>` element.

    Args:
        name: unique in the page: ids in the drawing begin with it.
        title: what the chart shows, for those who do not see it.
        paint: draws on the axes.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), INK),
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.fontsize": 10.5,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(size[0] / _PIXELS_PER_INCH, size[1] / _PIXELS_PER_INCH), layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.subplots()
        axes.patch.set_visible(False)
        paint(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    return _inlined(buffer.getvalue(), name, title)


def _inlined(document: str, name: str, title: str) -> str:
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(document)
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-label", title)
    root.set("class", "chart")
    text = ElementTree.tostring(root, encoding="unicode")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'xlink:href="#', f'xlink:href="#{name}-', text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 sans-serif", text)


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
        return draw(self.name, f"{self.title} [{self.unit}]", self._bars if self.is_stacked else self._lines, size=size)

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of the same figures, by x; of long runs, every so many."""
        values = [dict(series.points) for series in self.series]
        all_x = sorted({x for points in values for x in points})
        every = -(-len(all_x) // MOST_ROWS)
        rows = [[_number(x), *(_number(points[x]) if x in points else "" for points in values)] for x in all_x[::every]]
        return [self.x_label, *(series.name for series in self.series)], rows

    def _lines(self, axes: Any) -> None:
        for index, series in enumerate(self.series):
            if not series.points:
                continue
            xs, ys = zip(*series.points, strict=True)
            colour = SERIES[index % len(SERIES)]
            few = len(xs) <= MOST_MARKERS
            axes.plot(
                xs, ys, color=colour, label=series.name, linewidth=1.4, marker="o" if few else None, markersize=2.5
            )
        for mark in self.marks:
            axes.axhline(mark, color=SERIES[7], linewidth=0.9, linestyle="--")
        self._finish(axes)

    def _bars(self, axes: Any) -> None:
        binned = [(series.name, _binned(series.points)) for series in self.series]
        width = 0.85 * _spacing(binned[0][1])
        below: dict[float, float] = {}
        for index, (name, points) in enumerate(binned):
            bottoms = [below.get(x, 0.0) for x, _ in points]
            xs, ys = [x for x, _ in points], [y for _, y in points]
            axes.bar(xs, ys, width, bottom=bottoms, color=SERIES[index % len(SERIES)], label=name)
            below |= {x: below.get(x, 0.0) + y for x, y in points}
        self._finish(axes)

    def _finish(self, axes: Any) -> None:
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
