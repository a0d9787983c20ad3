"""Rows of the benchmarks' CSV files, and their medians."""

import csv
import statistics
from collections.abc import Iterable
from pathlib import Path

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """The rows of a file; none before its benchmark has run."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def values(rows: Iterable[Row], column: str) -> list[float]:
    """Of the rows that have one."""
    return [float(row[column]) for row in rows if row[column]]


def median_and_range(numbers: list[float], digits: int) -> str:
    if not numbers:
        return ""
    text = f"{statistics.median(numbers):.{digits}f}"
    return text if len(numbers) == 1 else f"{text} ({min(numbers):.{digits}f}-{max(numbers):.{digits}f})"
