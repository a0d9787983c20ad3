"""The report as one HTML file: no script, nothing from elsewhere; light and dark, from 400 pixels of width on."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape

from ...async_dapo.record import keys
from ...async_dapo.record.call_figures import CallFigures
from ...async_dapo.record.words import counted, seconds
from .answers import Sample, as_html
from .calls import COLUMNS, rows_of
from .headline import headline
from .health import EVERY_STEPS, RULES, VALIDATION_SHARE, hints, judged
from .learning import curves
from .run import Run, after_the_first

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; lighter ones on a dark ground.
_LIGHT = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8f8500", "#7a7a7a")
_DARK = ("#56a8e0", "#f0b840", "#2fc79b", "#e29bc4", "#8fd0f5", "#f5844a", "#d8cc3c", "#a0a0a0")

LEDGER_WORDS = {
    "trained": "trained",
    "filtered": "filtered: no gradient",
    "failed": "failed",
    "retired": "retired: too stale, or their agent loops gone; drawn again",
    "waiting": "waiting to be generated",
    "deferred": "deferred: their history promises nothing",
    "buffered": "kept for the next step",
}


def _variables(ink: str, grid: str, ground: str, card: str, colours: tuple[str, ...]) -> str:
    series = "".join(f"--series-{index}:{colour};" for index, colour in enumerate(colours))
    return f":root{{--ink:{ink};--grid:{grid};--ground:{ground};--card:{card};{series}}}"


STYLE = (
    _variables("#1c2430", "#dfe3e8", "#f4f6f8", "#ffffff", _LIGHT)
    + "@media (prefers-color-scheme: dark){"
    + _variables("#e4e8ee", "#3a4350", "#14181e", "#1f252d", _DARK)
    + "}"
    + "".join(f".part-{index}{{background:var(--series-{index})}}" for index in range(8))
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.45 system-ui,sans-serif}
header,main{max-width:1240px;margin:0 auto;padding:0 12px}
h1{font-size:1.35rem;margin:14px 0 4px}h2{font-size:1.15rem;margin:22px 0 6px}h3{font-size:1rem;margin:14px 0 4px}
.headline{background:var(--card);border-left:4px solid var(--series-0);padding:8px 12px;margin:8px 0}
p,li{overflow-wrap:anywhere}
figure{margin:0;background:var(--card);padding:10px;border-radius:6px;min-width:0}
figcaption{font-weight:600}
.chart{display:block;width:100%;height:auto}
.curves{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr));gap:10px;margin:8px 0}
.asked{background:var(--card);padding:10px;border-radius:6px;margin:8px 0}
.answers{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(260px,100%),1fr));gap:10px}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem;margin:4px 0;max-height:260px;overflow-y:auto}
.wide{margin:10px 0}.narrow{display:none}
@media (max-width:760px){.wide .broad{display:none}.wide .narrow{display:block}}
.scroll{overflow-x:auto}details .scroll{max-height:320px;overflow-y:auto}
table{border-collapse:collapse;font-size:.85rem}
th,td{text-align:left;padding:2px 10px 2px 0;border-bottom:1px solid var(--grid)}td{font-variant-numeric:tabular-nums}
.flow{display:flex;height:34px;border-radius:6px;overflow:hidden}
.flow .part{min-width:3px;overflow:hidden;text-align:center;line-height:34px;color:#10151b}
.legend{list-style:none;padding:0;margin:6px 0;display:flex;flex-wrap:wrap;gap:4px 16px}
.legend i{display:inline-block;width:11px;height:11px;margin-right:5px;border-radius:2px}
.hints li{margin:4px 0}
details summary{cursor:pointer;font-size:.85rem}
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A run, some of its answers, its engines over time as HTML, its calls of tools; empty where none were recorded."""

    run: Run
    answers: Sequence[Sample] = ()
    engines: str = ""
    calls: Mapping[str, CallFigures] = field(default_factory=dict)


def page(sections: Sequence[Section], *, renewed_s: float | None = None) -> str:
    """The whole document: runs one after the other; where there are several, a comparison before them.

    Args:
        renewed_s: after so many seconds the browser loads it again; None: never.
    """
    runs = [section.run for section in sections]
    title = "async DAPO: " + ", ".join(run.name for run in runs)
    body = "".join(_body(sections, runs))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        + ("" if renewed_s is None else f'<meta http-equiv="refresh" content="{renewed_s:.0f}">\n')
        + f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _body(sections: Sequence[Section], runs: Sequence[Run]) -> Iterator[str]:
    baseline = next((run for run in runs if not run.is_ours), None)
    yield "<header><h1>async DAPO report</h1>"
    for section in sections:
        run = section.run
        said = headline(run, baseline if run is not baseline else None)
        yield f'<p class="headline"><b>{escape(run.name)}</b>: {escape(said)}</p>'
    yield "</header>\n<main>"
    if len(runs) > 1:
        yield '<section id="side-by-side"><h2>Side by side</h2>'
        yield _table("what", [run.name for run in runs], _side_by_side(runs))
        yield curves(runs, "side")
        yield "</section>"
    for index, section in enumerate(sections):
        yield from _run(section, f"run{index}", is_alone=len(sections) == 1)
    yield "</main>"


def _run(section: Section, prefix: str, *, is_alone: bool) -> Iterator[str]:
    run = section.run
    yield f'<section id="{prefix}"><h2>{escape(run.name)}</h2>'
    yield f"<p>{escape(run.description.system)}; {_settings(run)}</p>"
    if is_alone:
        yield f"<h3>Did it learn?</h3>{curves([run], prefix)}"
    yield as_html(section.answers)
    if run.is_ours:
        yield "".join(_health(run))
        yield "".join(_causes(run))
        yield _calls(section.calls)
        yield "".join(_ledger(run))
        yield "".join(_sources(run))
    yield section.engines
    yield "".join(_what_was_run(run))
    yield "</section>"


def _settings(run: Run) -> str:
    return escape(", ".join(f"{name} {value}" for name, value in run.description.settings.items())) or "no description"


def _what_was_run(run: Run) -> Iterator[str]:
    of = run.description
    rows = []
    if not math.isnan(of.started_s):
        rows.append(("started", f"{datetime.fromtimestamp(of.started_s, UTC):%Y-%m-%d %H:%M} UTC"))
    rows.append(("machine", of.machine))
    rows.append(("versions", ", ".join(f"{name} {version}" for name, version in of.versions.items())))
    rows.append(("folder of checkpoints", of.checkpoints))
    known = [(name, [text]) for name, text in rows if text]
    overrides = [one for one in of.launch.get("overrides", ()) if not one.startswith("async_dapo.recorder=")]
    if overrides:  # the module of the command adds the lab's recorder itself
        found_in = of.launch.get("python_path")
        python = "python" if found_in is None else f"PYTHONPATH={shlex.quote(found_in)} python -P"
        command = " \\\n    ".join([f"{python} -m recipe.async_dapo_lab.train", *map(shlex.quote, overrides)])
        place = f"<p>In the folder {escape(of.launch['folder'])}:</p>" if "folder" in of.launch else ""
        yield f"<details><summary>What was run</summary>{_table('what', ['value'], known)}{place}"
        yield f"<pre>{escape(command)}</pre></details>"
    elif known:
        yield f"<details><summary>What was run</summary>{_table('what', ['value'], known)}</details>"


def _health(run: Run) -> Iterator[str]:
    steps = after_the_first(run.steps)[-EVERY_STEPS:]
    means = judged((step, run.by_step[step]) for step in steps)
    whole = judged((step, run.by_step[step]) for step in after_the_first(run.steps))
    if VALIDATION_SHARE in whole:  # validations come every so many steps
        means[VALIDATION_SHARE] = whole[VALIDATION_SHARE]
    if keys.FAILED_GROUPS in means:  # one that failed early is no better
        means[keys.FAILED_GROUPS] = run.total(keys.FAILED_GROUPS) / len(run.steps)
    found = hints(means)
    yield "<h3>Is it helping?</h3>"
    if found:
        yield f'<ul class="hints">{"".join(f"<li>{escape(hint)}</li>" for hint in found)}</ul>'
    else:
        over = counted(len(steps), "step")
        yield f"<p>All {len(means)} metrics that say so are in their healthy range, over {over}.</p>"
    rows = [
        (rule.key.removeprefix(keys.PREFIX), [f"{means[rule.key]:.3g}", rule.healthy])
        for rule in RULES
        if rule.key in means
    ]
    columns = [f"mean of the last {counted(len(steps), 'step')}", "healthy"]
    yield f"<details><summary>the {counted(len(rows), 'metric')}</summary>{_table('metric', columns, rows)}</details>"


def _causes(run: Run) -> Iterator[str]:
    if run.causes:
        rows = [(cause, [str(count)]) for cause, count in run.causes.most_common(20)]
        yield f"<h3>Why groups failed</h3>{_table('cause', ['groups'], rows)}"


def _calls(calls: Mapping[str, CallFigures]) -> str:
    return f"<h3>Calls of tools</h3>{_table('name', COLUMNS, rows_of(calls))}" if calls else ""


def _ledger(run: Run) -> Iterator[str]:
    """Every prompt group drawn, as a bar of what became of it."""
    ledger = run.ledger()
    if not ledger.get("drawn"):
        return
    parts = {term: count for term, count in ledger.items() if term != "drawn"}
    closes = sum(parts.values()) == ledger["drawn"]
    yield f"<h3>Where {counted(ledger['drawn'], 'prompt group')} went</h3>"
    yield '<div class="flow" role="img" aria-label="ledger">'
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


def _sources(run: Run) -> Iterator[str]:
    """What became of the groups of each data source, and how they were answered."""
    sources = run.sources()
    if not sources:
        return
    counts = [term for term in keys.LEDGER_TERMS if any(term in own for own in sources.values())]
    others = sorted({term for own in sources.values() for term in own} - {*counts})
    drawn, trained = (sum(own.get(term, 0.0) for own in sources.values()) for term in ("drawn", "trained"))
    rows = []
    for name, own in sources.items():
        parts = zip(("drawn", "trained"), (drawn, trained), strict=True)
        shares = [f"{own.get(term, 0.0) / whole:.1%}" if whole else "" for term, whole in parts]
        figures = [seconds(own[term]) if term in own else "" for term in others]
        rows.append((name, [*shares, *(f"{own.get(term, 0.0):.0f}" for term in counts), *figures]))
    columns = ["share drawn", "share trained", *counts, *(term.replace("_", " ") for term in others)]
    yield f"<h3>Where the groups of each source went</h3>{_table('source', columns, rows)}"


def _side_by_side(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    def row(words: str, values: list[float | None], digits: int = 3) -> tuple[str, list[str]]:
        return words, ["" if value is None else f"{value:.{digits}g}" for value in values]

    accuracies = [run.accuracy() for run in runs]
    return [
        ("system", [run.description.system for run in runs]),
        ("trained steps", [str(len(run.steps)) for run in runs]),
        row("seconds of a step, median", [run.median(keys.STEP_S) for run in runs]),
        row("seconds of its rollout, median", [run.median(keys.ROLLOUT_S) for run in runs]),
        row("hours of training", [run.hours() for run in runs]),
        row("empty places for requests in the engines", [run.idle_ratio() for run in runs]),
        row("thrown-away tokens", [run.waste_ratio() if run.is_ours else None for run in runs]),
        row("off-policy tokens", [run.mean(keys.OFF_POLICY) for run in runs]),
        row("length trained over dispatched", [run.last(keys.LENGTH_RATIO) for run in runs]),
        row("accuracy, first", [points[0][1] if points else None for points in accuracies]),
        row("accuracy, last", [points[-1][1] if points else None for points in accuracies]),
    ]


def _table(corner: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in (corner, *columns))
    lines = [(name, "".join(f"<td>{escape(cell)}</td>" for cell in cells)) for name, cells in rows]
    body = "".join(f"<tr><th>{escape(name)}</th>{cells}</tr>" for name, cells in lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
