"""What a quick-start run leaves for its reader beside its report: `summary.json` and a table."""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from ...async_dapo.record import keys
from ...async_dapo.record.run_files import STEPS_FILE
from ...async_dapo.record.run_record import all_causes, read_steps
from ..report.run import after_the_first
from .run_metrics import RunMetrics

MOST_CAUSES = 5  # that are told


def summarise(metrics: RunMetrics, *, options: dict[str, Any], wall_s: float, peak_memory_bytes: int) -> dict[str, Any]:
    """All figures of a run; None where it ended before the figure was known."""
    accuracy = [value for _, value in metrics.accuracy()]
    step_s = [value for _, value in metrics.series(keys.STEP_S)]
    return {
        "options": options,
        "accuracy_before": accuracy[0] if accuracy else None,
        "accuracy_after": accuracy[-1] if len(accuracy) > 1 else None,
        "accuracy_metric": metrics.accuracy_name() or None,
        "steps": metrics.trained_steps,
        "step_s_median": statistics.median(after_the_first(step_s)) if step_s else None,
        "wall_s": wall_s,
        "peak_memory_gb": peak_memory_bytes / 1e9,
        "groups": {term: _count(metrics.last(keys.LEDGER + term)) for term in keys.LEDGER_TERMS},
        "steps_stopped_early": sum(value > 0 for _, value in metrics.series(keys.INTERRUPTED)),
        "length_trained_mean_tok": metrics.last(keys.LENGTH_TRAINED),
        "length_dispatched_mean_tok": metrics.last(keys.LENGTH_DISPATCHED),
    }


def write_summary(summary: dict[str, Any], output: Path) -> Table:
    (output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    table = Table(title="async DAPO quick start", show_header=False, title_justify="left")
    for row in _rows(summary, output):
        table.add_row(*map(escape, row))
    return table


def failures(output: Path) -> list[tuple[str, int]]:
    """What groups failed of, the most frequent first, and how many."""
    record = output / STEPS_FILE
    return all_causes(read_steps(record)).most_common(MOST_CAUSES)


def _rows(summary: dict[str, Any], output: Path) -> Iterator[tuple[str, str]]:
    groups = summary["groups"]
    yield "accuracy before -> after", f"{_text(summary['accuracy_before'])} -> {_text(summary['accuracy_after'])}"
    yield "accuracy is", summary["accuracy_metric"] or "of no validation"
    yield "steps (stopped early)", f"{summary['steps']} ({summary['steps_stopped_early']})"
    yield "seconds per step, median", _text(summary["step_s_median"])
    for term in keys.LEDGER_TERMS:  # the first is the sum of the others
        yield f"groups {term}", _text(groups[term])
    yield "mean length trained [tokens]", _text(summary["length_trained_mean_tok"], digits=1)
    yield "mean length dispatched [tokens]", _text(summary["length_dispatched_mean_tok"], digits=1)
    yield "peak memory [GB]", _text(summary["peak_memory_gb"], digits=1)
    yield "wall time [s]", _text(summary["wall_s"], digits=0)
    yield "folder", str(output)
    yield "report", "report.html"
    yield "log", "train.log"
    yield "metrics", "metrics.jsonl, tensorboard/"
    yield "these figures", "summary.json"


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)


def _text(value: float | None, *, digits: int = 2) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.{digits}f}"
