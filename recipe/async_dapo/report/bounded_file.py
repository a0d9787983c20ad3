"""A file that grows by a line a step and stays small."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 16_000_000  # beyond it the older half of the lines goes


class BoundedFile:
    """JSON lines, up to `most_bytes` of the newest ones."""

    def __init__(self, path: Path, *, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes

    def keep_before(self, step: int) -> None:
        """Drop what a run had written of this step and later ones; all of it, where it begins."""
        self._path.write_text(text_before(self._path, step))

    def add(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
            size = stream.tell()
        if size > self._most_bytes:
            lines = self._path.read_text().splitlines(keepends=True)
            self._path.write_text("".join(lines[len(lines) // 2 :]))


def text_before(path: Path, step: int) -> str:
    """The complete lines of earlier steps; empty for a run that begins, and where there is no file."""
    if step <= 1 or not path.exists():
        return ""
    complete, _, _ = path.read_text().rpartition("\n")
    return "".join(f"{line}\n" for line in complete.splitlines() if json.loads(line)["step"] < step)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete ones; none where there is no file."""
    if not path.exists():
        return []
    complete, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in complete.splitlines()]
