"""Calls of tools by their names: how many, how many failed, and how long they took. Recorded a line a step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...async_dapo.record.call_figures import CallFigures
from ...async_dapo.record.words import percent
from ..run_files import read_lines

MOST_NAMES = 40  # in a line and in a table: those that were called most
OTHERS = "(other names)"
COLUMNS = ("calls", "failed", "median [s]", "longest [s]")
_SHOWN_CHARS = 80


def call_line(step: int, calls: Mapping[str, CallFigures]) -> Mapping[str, Any] | None:
    """None where nothing was called."""
    return {"step": step, "calls": {name: asdict(own) for name, own in _most_called(calls).items()}} if calls else None


def summed(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """One line of several, with the last one's step."""
    return {"step": lines[-1]["step"], "calls": {name: asdict(own) for name, own in _together(lines).items()}}


def read_calls(path: Path) -> dict[str, CallFigures]:
    """All steps together."""
    return _together(read_lines(path))


def _together(lines: Iterable[Mapping[str, Any]]) -> dict[str, CallFigures]:
    found: dict[str, CallFigures] = {}
    for line in lines:
        for name, own in line["calls"].items():
            durations = {int(power): count for power, count in own["durations"].items()}
            found[name] = found.get(name, CallFigures()) + CallFigures(**own | {"durations": durations})
    return _most_called(found)


def rows_of(calls: Mapping[str, CallFigures]) -> list[tuple[str, list[str]]]:
    """Of the report's table, in the order of `COLUMNS`."""
    return [
        (shown(name), [f"{own.calls:,}", _failed(own), _seconds(own.median_s), _seconds(own.longest_s)])
        for name, own in calls.items()
    ]


def shown(name: str) -> str:
    """A name that fits into a line, whatever the user's code has called it."""
    plain = name if name.isprintable() and name.strip() else ascii(name)
    return plain if len(plain) <= _SHOWN_CHARS else f"{plain[: _SHOWN_CHARS - 3]}..."


def _most_called(calls: Mapping[str, CallFigures]) -> dict[str, CallFigures]:
    ordered = sorted(calls.items(), key=lambda item: (item[0] == OTHERS, -item[1].calls, item[0]))
    kept, rest = dict(ordered[:MOST_NAMES]), [own for _, own in ordered[MOST_NAMES:]]
    return kept | ({OTHERS: sum(rest, CallFigures())} if rest else {})


def _failed(own: CallFigures) -> str:
    return f"{own.failed:,} ({percent(own.failed / own.calls)})" if own.failed else "0"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds else ""
