"""Writes reports, with charts of the engines over time: on demand, and at the end of a run, which they never end."""

import logging
import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from ...async_dapo.record.words import counted
from ...async_dapo.runtime.logs import log_phase
from ..run_files import ANSWERS_FILE, CALLS_FILE, REPORT_FILE, SAMPLES_FILE, STEPS_FILE
from .answers import read_samples
from .calls import read_calls
from .charts import INK, NARROW, SERIES, WIDE, draw, with_gaps
from .page import Section, page
from .run import Run
from .samples import LoadSample
from .timeline import StepTimeline, read_timeline

logger = logging.getLogger(__name__)

SHOWN_STEPS = 4  # the last ones
MOST_POINTS = 300  # of a line
GAP_S, GAP = 1.0, 5.0  # a longer time between two samples, and so many times the usual one, is a gap
WAITING = SERIES[5]
INCHES_OF_A_NAME = 1.7  # in the legend
BANDS = {"rollout": SERIES[4], "training": SERIES[1], "weights": SERIES[3], "validation": SERIES[6]}

Value = Callable[[LoadSample], float]
PANELS: tuple[tuple[str, str, Value, bool], ...] = (  # the last says whether it is a share
    ("requests", "Requests in the engine, running and waiting", lambda sample: sample.running + sample.waiting, False),
    ("kv", "Share of the KV cache in use", lambda sample: sample.kv, True),
)


def engine_charts(steps: Sequence[StepTimeline], prefix: str) -> str:
    """Requests and KV cache of each engine, on bands of what the trainer was at: as HTML, a broad drawing and a narrow
    one of each; empty where nothing was recorded.

    Args:
        prefix: begins the drawings' names, which are unique in a page.
    """
    shown = since_newest_start([step for step in steps if any(step.engines.values())][-SHOWN_STEPS:])
    if not shown:
        return ""
    parts = [f"<h3>Engines over the last {counted(len(shown), 'step')}</h3>"]
    for name, title, value, is_share in PANELS:
        paint = _painter(shown, value, is_share=is_share)
        broad = draw(f"{prefix}-{name}-broad", title, paint, size=WIDE)
        narrow = draw(f"{prefix}-{name}-narrow", title, paint, size=NARROW)
        parts.append(
            f'<figure class="wide"><figcaption>{escape(title)}</figcaption>'
            f'<div class="broad">{broad}</div><div class="narrow">{narrow}</div></figure>'
        )
    return "".join([*parts, "<p>A line for each engine; where they are more than eight, without its name.</p>"])


def _painter(steps: Sequence[StepTimeline], value: Value, *, is_share: bool) -> Callable[[Any], None]:
    def paint(axes: Any) -> None:
        from matplotlib.ticker import PercentFormatter

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
            name = f"engine {server}" if len(servers) <= len(SERIES) else None
            for step in steps:
                samples = step.engines.get(server, ())
                thinned = samples[:: -(-len(samples) // MOST_POINTS) or 1]
                points = [(sample.time_s, value(sample)) for sample in thinned]
                label = name if step is steps[0] else None
                axes.plot(*with_gaps(points, longest_s(points)), color=colour, linewidth=1.0, label=label)
        if not is_share:
            _paint_waiting(axes, steps)
        axes.set_ylim(bottom=0)
        if is_share:
            axes.set_ylim(top=max(0.1, 1.05 * axes.get_ylim()[1]))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlabel("seconds since the start of the run")
        columns = max(2, int(axes.figure.get_figwidth() / INCHES_OF_A_NAME))
        style = {"borderaxespad": 0.1, "columnspacing": 1.0, "handlelength": 1.0}
        axes.figure.legend(loc="outside upper left", ncols=columns, **style)

    return paint


def _paint_waiting(axes: Any, steps: Sequence[StepTimeline]) -> None:
    label: str | None = "responses that wait for calls of tools"
    for samples in (step.waiting_for_calls for step in steps):
        if samples:
            xs, ys = zip(*samples, strict=True)
            axes.plot(xs, ys, color=WAITING, linewidth=1.3, linestyle="--", drawstyle="steps-post", label=label)
            label = None


def longest_s(points: Sequence[tuple[float, float]]) -> float:
    """An engine is sampled as it steps: where it has not stepped for longer than this, its line breaks off."""
    between_s = [later[0] - earlier[0] for earlier, later in pairwise(points)]
    return max(GAP_S, GAP * median(between_s)) if between_s else math.inf


def since_newest_start(steps: Sequence[StepTimeline]) -> Sequence[StepTimeline]:
    """The steps behind the last pause that is longer than those on both its sides: where a run was resumed, it may have
    stood still for days.
    """
    ends = [_ends(step) for step in steps]
    for number in range(len(steps) - 1, 0, -1):
        (began, ended), (next_began, next_ended) = ends[number - 1], ends[number]
        if next_began - ended > max(ended - began, next_ended - next_began):
            return steps[number:]
    return steps


def _ends(step: StepTimeline) -> tuple[float, float]:
    spans = [time_s for span in step.spans for time_s in (span.began_s, span.ended_s)]
    times = spans + [sample.time_s for samples in step.engines.values() for sample in samples]
    return min(times), max(times)


def write_report(folders: Sequence[Path], output: Path | None = None, *, renewed_s: float | None = None) -> Path:
    """One page of all runs. Returns its path: `output`, or `report.html` in the first folder.

    Args:
        folders: of runs, or files of verl's file logger.
        renewed_s: after so many seconds the browser loads the page again; None: never.

    Raises:
        NoRecord: when one of the folders holds no record of a run.
    """
    first = folders[0]
    path = output or (first.with_suffix(".html") if first.is_file() else first / REPORT_FILE)
    runs = [Run.load(folder) for folder in folders]
    sections = [
        Section(
            run=run,
            answers=read_samples(run.folder / ANSWERS_FILE),
            calls=read_calls(run.folder / CALLS_FILE),
            engines=engine_charts(read_timeline(run.folder / SAMPLES_FILE), f"engines{index}"),
        )
        for index, run in enumerate(runs)
    ]
    draft = path.with_suffix(".part")
    draft.write_text(page(sections, renewed_s=renewed_s), encoding="utf-8")
    draft.replace(path)  # a browser that renews the page finds all of it
    return path


def report_the_end(report_dir: str | Path | None) -> Path | None:
    """However the run ended, if it came to a step, and its record is on this machine. What goes wrong is logged: the
    run has ended as it did.
    """
    if not isinstance(report_dir, str | Path) or not Path(report_dir, STEPS_FILE).exists():
        return None
    try:
        path = write_report([Path(report_dir)])
    except Exception as error:  # a missing library, a full disk: no reason to call a training failed
        logger.warning("no report was written: %r; try python -m %s %s", error, __package__, report_dir)
        return None
    log_phase(f"report: {path}")
    return path
