"""Files that the lab adds to a run's record in the folder `async_dapo.report_dir`; report and planner read them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..async_dapo.record.run_files import read_lines

LENGTHS_FILE = "lengths.jsonl"  # of responses, a line a group
SAMPLES_FILE = "timeline.jsonl"  # engines over time, a line a step
ANSWERS_FILE = "answers.jsonl"  # of validations, a few
CALLS_FILE = "calls.jsonl"  # of tools, by their names, a line a step
EPISODES_FILE = "episodes.jsonl"  # trained trajectories, a group a step
REPORT_FILE = "report.html"

MOST_BYTES = 16_000_000  # beyond it the older half of the lines goes


class BoundedFile:
    """A file that grows by lines of JSON and stays small: up to `most_bytes` of the newest lines."""

    def __init__(self, path: Path, *, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes

    def keep_before(self, step: int) -> None:
        """Drop what a run had written of this step and later ones; all of it, where it begins."""
        lines = read_lines(self._path) if step > 1 else []
        self._path.write_text("".join(json.dumps(line) + "\n" for line in lines if line["step"] < step))

    def add(self, *lines: Mapping[str, Any]) -> None:
        with self._path.open("a") as stream:
            stream.writelines(json.dumps(line) + "\n" for line in lines)
            size = stream.tell()
        if size > self._most_bytes:
            written = self._path.read_text().splitlines(keepends=True)
            self._path.write_text("".join(written[len(written) // 2 :]))
