"""How a report's charts are drawn: as inline SVG, by matplotlib, without script or network, in colours that follow the
page's theme. A chart is drawn at the sizes it is shown at, `WIDE` and `NARROW`, so that its text is never scaled down.
"""

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

Size = tuple[int, int]  # [CSS pixels]
WIDE: Size = (1180, 330)
NARROW: Size = (360, 330)
SMALL: Size = (376, 240)  # one of a grid, which has as many columns as there is room for

_PIXELS_PER_INCH = 72.0
# Drawn in these, shown in the page's own: `--ink`, `--grid`, and a colour for each series.
INK, GRID = "#010101", "#020202"
SERIES = tuple(f"#0303{index:02x}" for index in range(8))
_VARIABLES = {INK: "var(--ink)", GRID: "var(--grid)"} | {
    colour: f"var(--series-{index})" for index, colour in enumerate(SERIES)
}
_SVG = "http://www.w3.org/2000/svg"


def draw(name: str, title: str, paint: Callable[[Any], None], *, size: Size) -> str:
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


def with_gaps(points: Sequence[tuple[float, float]], longest: float) -> tuple[list[float], list[float]]:
    """Places and values of a line. Where two points are farther apart than `longest`, it breaks off: no line is drawn
    that nothing was seen of.
    """
    xs, ys = list[float](), list[float]()
    for x, y in points:
        if xs and x - xs[-1] > longest:
            xs.append((xs[-1] + x) / 2)
            ys.append(math.nan)
        xs.append(x)
        ys.append(y)
    return xs, ys


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
