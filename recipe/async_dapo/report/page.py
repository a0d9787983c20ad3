"""The report as one HTML file: no script, nothing from elsewhere."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from . import keys
from .charts import Chart
from .contents import charts_of, comparison
from .estimate import NOTE, Estimate
from .headline import headline
from .health import EVERY_STEPS, RULES, hints, judged
from .run import Run, after_the_first
from .style import STYLE

LEDGER_WORDS = {
    "trained": "trained",
    "filtered": "filtered: no gradient",
    "screened": "screened out after a few samples",
    "failed": "failed",
    "retired": "retired: too stale, or their agent loops gone; drawn again",
    "waiting": "waiting to be generated",
    "deferred": "deferred: their history promises nothing",
    "buffered": "kept for the next step",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A run, and what is told of it beside its metrics.

    Attributes:
        engines: over time, as HTML; empty where they were not recorded.
        responses: a few, as HTML; as above.
    """

    run: Run
    engines: str = ""
    responses: str = ""
    estimate: Estimate | None = None


def page(sections: Sequence[Section]) -> str:
    """The whole document: the first run's charts come first; where there are several, a comparison before them."""
    runs = [section.run for section in sections]
    title = "async DAPO: " + ", ".join(run.name for run in runs)
    body = "".join(_body(sections, runs))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _body(sections: Sequence[Section], runs: Sequence[Run]) -> Iterator[str]:
    baseline = next((run for run in runs if not run.is_ours), None)
    yield "<header><h1>async DAPO report</h1>"
    for section in sections:
        run = section.run
        said = headline(run, baseline if run is not baseline else None, section.estimate)
        yield f'<p class="headline"><b>{escape(run.name)}</b>: {escape(said)}</p>'
        if section.estimate is not None:
            yield f"<p><small>{escape(NOTE)}</small></p>"
    yield "</header>\n<main>"
    if len(runs) > 1:
        yield '<section id="side-by-side"><h2>Side by side</h2>'
        yield _table("what", [run.name for run in runs], _side_by_side(runs))
        yield _grid(chart for chart in comparison(runs) if chart.has_data)
        yield "</section>"
    for index, section in enumerate(sections):
        yield from _run(section, f"run{index}")
    yield "</main>"


def _run(section: Section, prefix: str) -> Iterator[str]:
    run = section.run
    yield f'<section id="{prefix}"><h2>{escape(run.name)}</h2>'
    yield f"<p>{escape(run.description.system)}; {_settings(run)}</p>"
    if run.is_ours:
        yield "".join(_health(run))
        yield "".join(_causes(run))
        yield "".join(_ledger(run))
    yield section.engines
    yield _grid(charts_of(run, prefix))
    yield section.responses
    yield "</section>"


def _settings(run: Run) -> str:
    return escape(", ".join(f"{name} {value}" for name, value in run.description.settings.items())) or "no description"


def _health(run: Run) -> Iterator[str]:
    steps = after_the_first(run.steps)[-EVERY_STEPS:]
    means = judged((step, run.by_step[step]) for step in steps)
    if keys.FAILED_GROUPS in means:  # one that failed early is no better
        means[keys.FAILED_GROUPS] = run.total(keys.FAILED_GROUPS) / len(run.steps)
    found = hints(means)
    yield "<h3>Is it helping?</h3>"
    if found:
        yield f'<ul class="hints">{"".join(f"<li>{escape(hint)}</li>" for hint in found)}</ul>'
    else:
        yield f"<p>All {len(means)} metrics that say so are in their healthy range, over {len(steps)} steps.</p>"
    rows = [
        (rule.key.removeprefix("async_dapo/"), [f"{means[rule.key]:.3g}", rule.healthy])
        for rule in RULES
        if rule.key in means
    ]
    columns = [f"mean of the last {len(steps)} steps", "healthy"]
    yield f"<details><summary>the {len(rows)} metrics</summary>{_table('metric', columns, rows)}</details>"


def _causes(run: Run) -> Iterator[str]:
    if run.causes:
        rows = [(cause, [str(count)]) for cause, count in run.causes.most_common(20)]
        yield f"<h3>Why groups failed</h3>{_table('cause', ['groups'], rows)}"


def _ledger(run: Run) -> Iterator[str]:
    """Every prompt group drawn, as a bar of what became of it."""
    ledger = run.ledger()
    if not ledger.get("drawn"):
        return
    parts = {term: count for term, count in ledger.items() if term != "drawn"}
    closes = sum(parts.values()) == ledger["drawn"]
    yield f'<h3>Where {ledger["drawn"]} prompt groups went</h3><div class="flow" role="img" aria-label="ledger">'
    for index, (term, count) in enumerate(parts.items()):
        if count:
            share = 100 * count / ledger["drawn"]
            text = f"{count} {LEDGER_WORDS[term]}"
            yield (
                f'<span class="part part-{index}" style="flex-grow:{count}" title="{escape(text)}, {share:.1f} %">'
                f"{count}</span>"
            )
    yield '</div><ul class="legend">'
    for index, (term, count) in enumerate(parts.items()):
        yield f'<li><i class="part-{index}"></i>{count} {escape(LEDGER_WORDS[term])}</li>'
    total = " + ".join(str(count) for count in parts.values())
    yield f"</ul><p>{total} = {sum(parts.values())}{'' if closes else ', which is not what was drawn'}</p>"


def _side_by_side(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    def row(words: str, values: list[float | None], digits: int = 3) -> tuple[str, list[str]]:
        return words, ["" if value is None else f"{value:.{digits}g}" for value in values]

    accuracies = [run.accuracy() for run in runs]
    return [
        ("system", [run.description.system for run in runs]),
        ("trained steps", [str(len(run.steps)) for run in runs]),
        row("seconds of a step, median", [run.median(keys.STEP_S) for run in runs]),
        row("seconds of its rollout, median", [run.median(keys.ROLLOUT_S) for run in runs]),
        row("hours of training", [max(run.time_s.values()) / 3600 for run in runs]),
        row("empty places in the engines", [run.idle_ratio() for run in runs]),
        row("thrown-away tokens", [run.waste_ratio() if run.is_ours else None for run in runs]),
        row("off-policy tokens", [run.mean(keys.OFF_POLICY) for run in runs]),
        row("length trained over dispatched", [run.last(keys.LENGTH_RATIO) for run in runs]),
        row("accuracy, first", [points[0][1] if points else None for points in accuracies]),
        row("accuracy, last", [points[-1][1] if points else None for points in accuracies]),
    ]


def _grid(charts: Iterator[Chart]) -> str:
    return f'<div class="grid">{"".join(map(_card, charts))}</div>'


def _card(chart: Chart) -> str:
    header, rows = chart.rows()
    table = _table(header[0], header[1:], [(row[0], row[1:]) for row in rows])
    return (
        f'<figure id="{chart.name}"><figcaption>{escape(chart.title)}</figcaption>{chart.svg()}'
        f"<p>{escape(chart.note)}</p><details><summary>figures</summary>{table}</details></figure>"
    )


def _table(corner: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in (corner, *columns))
    lines = [(name, "".join(f"<td>{escape(cell)}</td>" for cell in cells)) for name, cells in rows]
    body = "".join(f"<tr><th>{escape(name)}</th>{cells}</tr>" for name, cells in lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
