"""The files of a run's record in the folder `async_dapo.report_dir`: the recipe's (`extensions/record`), and those that
the lab adds. Report and planner read them.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..async_dapo.record.run_files import replacing

logger = logging.getLogger(__name__)

RUN_FILE = "run.json"  # what was run
STEPS_FILE = "steps.jsonl"  # metrics, a line a step
LENGTHS_FILE = "lengths.jsonl"  # of responses, a line a group
SAMPLES_FILE = "timeline.jsonl"  # engines over time, a line a step
ANSWERS_FILE = "answers.jsonl"  # of validations, a few
CALLS_FILE = "calls.jsonl"  # of tools, by their names, a line a step
EPISODES_FILE = "episodes.jsonl"  # trained trajectories, a group a step
REPORT_FILE = "report.html"

MOST_BYTES = 16_000_000  # of one of these files

Line = Mapping[str, Any]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete ones; none where there is no file."""
    if not path.exists():
        return []
    complete, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in complete.splitlines()]


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    """In place of what is there, which stays as it was if this ends on the way."""
    with replacing(path) as file:
        file.writelines(f"{json.dumps(line)}\n".encode() for line in lines)


class BoundedFile:
    """A file that grows by lines of JSON and stays small: above `most_bytes` it is written again, without the older
    half of its lines. A process that ends on the way leaves the file as it was.

    Args:
        summed: makes one line, with the last one's step, of two neighbours of the older half, which so stays, in less
            detail: a run that goes on from a step loses nothing of those before it but what is in a line with it. None:
            that half goes, and the log tells so once.
    """

    def __init__(
        self, path: Path, *, summed: Callable[[Sequence[Line]], Line] | None = None, most_bytes: int = MOST_BYTES
    ) -> None:
        self._path = path
        self._summed = summed
        self._most_bytes = most_bytes
        self._is_told = False

    def keep_before(self, step: int) -> None:
        """Drop what a run had written of this step and later ones; all of it, where it begins."""
        lines = read_lines(self._path) if step > 1 else []
        write_lines(self._path, (line for line in lines if line["step"] < step))

    def add(self, *lines: Line) -> None:
        with self._path.open("a") as stream:
            stream.writelines(json.dumps(line) + "\n" for line in lines)
            size = stream.tell()
        if size > self._most_bytes:
            self._shorten()

    def _shorten(self) -> None:
        lines = read_lines(self._path)
        older, newer = lines[: len(lines) // 2], lines[len(lines) // 2 :]
        if not older:
            return
        if self._summed is not None:
            kept = [self._summed(older[first : first + 2]) for first in range(0, len(older), 2)]
            write_lines(self._path, [*kept, *newer])
            return
        write_lines(self._path, newer)
        if not self._is_told:
            self._is_told = True
            text = "%s is above %.3g MB: lines of steps before %d are dropped, and so on as it grows"
            logger.warning(text, self._path, self._most_bytes / 1e6, newer[0]["step"])
