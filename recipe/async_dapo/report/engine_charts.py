"""Engines over time, as charts: requests and KV cache of each engine, on bands of what the trainer was at."""

from collections.abc import Callable, Sequence
from html import escape

from ..core.load_samples import LoadSample
from .svg import INK, NARROW, SERIES, WIDE, Drawing, draw
from .timeline import StepTimeline

SHOWN_STEPS = 4  # the last ones
MOST_POINTS = 300  # of a line
BANDS = {"rollout": SERIES[4], "training": SERIES[1], "weights": SERIES[3], "validation": SERIES[6]}

Value = Callable[[LoadSample], float]
PANELS: tuple[tuple[str, str, Value], ...] = (
    ("requests", "Requests in the engine, running and waiting", lambda sample: sample.running + sample.waiting),
    ("kv", "Share of the KV cache in use", lambda sample: sample.kv),
)


def engine_charts(steps: Sequence[StepTimeline], prefix: str) -> str:
    """As HTML, a broad drawing and a narrow one of each; empty where nothing was recorded.

    Args:
        prefix: begins the drawings' names, which are unique in a page.
    """
    shown = [step for step in steps if any(step.engines.values())][-SHOWN_STEPS:]
    if not shown:
        return ""
    parts = [f"<h3>Engines over the last {len(shown)} steps</h3>"]
    for name, title, value in PANELS:
        paint = _painter(shown, title, value)
        broad = draw(f"{prefix}-{name}-broad", title, paint, size=WIDE)
        narrow = draw(f"{prefix}-{name}-narrow", title, paint, size=NARROW)
        parts.append(
            f'<figure class="wide"><figcaption>{escape(title)}</figcaption>'
            f'<div class="broad">{broad}</div><div class="narrow">{narrow}</div></figure>'
        )
    parts.append("<p>A line for each engine. <code>timeline.json</code> beside this page opens in Perfetto.</p>")
    return "".join(parts)


def _painter(steps: Sequence[StepTimeline], title: str, value: Value) -> Callable[[Drawing], None]:
    def paint(drawing: Drawing) -> None:
        axes = drawing.axes
        named: set[str] = set()
        for step in steps:
            for span in step.spans:
                if span.name in BANDS:
                    label = None if span.name in named else span.name
                    ends = span.began_s, span.ended_s
                    axes.axvspan(*ends, color=BANDS[span.name], alpha=0.22, linewidth=0, label=label)
                    named.add(span.name)
        servers = sorted({server for step in steps for server in step.engines})
        for index, server in enumerate(servers):
            colour = INK if len(servers) == 1 else SERIES[index % len(SERIES)]
            for step in steps:
                samples = step.engines.get(server, ())
                thinned = samples[:: -(-len(samples) // MOST_POINTS) or 1]
                xs, ys = [sample.time_s for sample in thinned], [value(sample) for sample in thinned]
                [line] = axes.plot(xs, ys, color=colour, linewidth=1.0)
                drawing.tip(line, f"engine {server}: {title}")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds since the start of the run")
        axes.figure.legend(loc="outside upper left", ncols=4, borderaxespad=0.1, columnspacing=1.0, handlelength=1.0)

    return paint
