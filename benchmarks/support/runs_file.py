"""The CSV file of a benchmark's runs: it grows run by run, so that an interrupted benchmark goes on where it was."""

import fcntl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd


@contextmanager
def claim(path: Path, *, waits: bool = True) -> Iterator[bool]:
    """Hold `path` against other processes, by a lock file beside it that is free again when this process ends.

    Args:
        waits: until nobody else holds it.

    Yields:
        Whether it is held.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


class RunsFile:
    """Rows with the same columns, and the commit that was measured; what is in the file is never measured again.
    Several processes may add to it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = self._read()

    def _read(self) -> pd.DataFrame:
        """As text, so that older rows are written back as they were."""
        return pd.read_csv(self._path, dtype=str, keep_default_na=False) if self._path.exists() else pd.DataFrame()

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
        return len(self._matching(wanted)) > 0

    def row(self, **wanted: Any) -> pd.Series:
        """The first row with these values, as text.

        Raises:
            KeyError: if there is none.
        """
        matching = self._matching(wanted)
        if not len(matching):
            raise KeyError(wanted)
        return matching.iloc[0]

    @staticmethod
    def folder_name(wanted: Mapping[str, Any]) -> str:
        """For what the run of such a row leaves behind."""
        return "-".join(map(str, wanted.values())).replace(", ", "-").replace(" ", "_")

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row. Whenever this is interrupted, the file has all rows or all but this one."""
        new = pd.DataFrame([{key: str(value) for key, value in row.items()} | {"commit": commit()}])
        with claim(self._path):
            self._rows = pd.concat([self._read(), new]).fillna("")
            new_file = self._path.with_suffix(".new")
            self._rows.to_csv(new_file, index=False)
            new_file.replace(self._path)

    def _matching(self, wanted: Mapping[str, Any]) -> pd.DataFrame:
        if self._rows.empty:
            return self._rows
        return self._rows[(self._rows[list(wanted)] == list(map(str, wanted.values()))).all(axis="columns")]


def commit() -> str:
    """Of this checkout; ends in `-dirty` if what is measured has been changed since, is empty if it is none."""
    head = _git("rev-parse", "--short", "HEAD")
    return f"{head}-dirty" if _git("status", "--porcelain", "--", "recipe", "benchmarks") else head


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parents[2]), *arguments]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
