"""The CSV file of a benchmark's runs: it grows run by run, so that an interrupted benchmark goes on where it was."""

import csv
import subprocess
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """The rows of a file; none before its benchmark has run."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class RunsFile:
    """Rows with the same columns, and the commit that was measured; what is in the file is never measured again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = read(path)

    def measure(self, cell: Mapping[str, Any], run: Callable[[], Mapping[str, Any]]) -> None:
        """Add the row of a cell that has none yet."""
        if self.has(**cell):
            print(f"{self._path} has {dict(cell)}: not measured again", flush=True)
            return
        row = {**cell, **run()}
        self.add(row)
        print(row, flush=True)

    def has(self, **wanted: Any) -> bool:
        """Whether there is a row with these values."""
        return any(all(row[key] == str(value) for key, value in wanted.items()) for row in self._rows)

    @staticmethod
    def folder_name(wanted: Mapping[str, Any]) -> str:
        """For what the run of such a row leaves behind."""
        return "-".join(map(str, wanted.values())).replace(", ", "-").replace(" ", "_")

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row, and write the file whole."""
        self._rows.append({key: str(value) for key, value in row.items()} | {"commit": _commit()})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(chain.from_iterable(self._rows))))
            writer.writeheader()
            writer.writerows(self._rows)


def _commit() -> str:
    """Of this checkout; ends in `-dirty` if what is measured has been changed since, is empty if it is none."""
    head = _git("rev-parse", "--short", "HEAD")
    return f"{head}-dirty" if _git("status", "--porcelain", "--", "recipe", "benchmarks") else head


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parents[2]), *arguments]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
