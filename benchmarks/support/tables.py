"""Columns of the benchmarks' rows, their medians as text, and tables of them."""

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.support.runs_file import Row


def values(rows: Iterable[Row], column: str) -> list[float]:
    """Of the rows that have one."""
    return [float(row[column]) for row in rows if row[column]]


def median_and_range(numbers: list[float], digits: int) -> str:
    """Empty without numbers; no range of a single one."""
    if not numbers:
        return ""
    text = f"{statistics.median(numbers):.{digits}f}"
    return text if len(numbers) == 1 else f"{text} ({min(numbers):.{digits}f}-{max(numbers):.{digits}f})"


def table(head: tuple[str, ...], rows: Iterable[Sequence[str]]) -> str:
    """As Markdown."""
    lines: list[Sequence[str]] = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
