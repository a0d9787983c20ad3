"""Files that a run writes while it trains: those of its folder, `async_dapo.report_dir`, which its report and the
planner read, and verl's metrics.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RUN_FILE = "run.json"  # what was run
STEPS_FILE = "steps.jsonl"  # metrics, a line a step
LENGTHS_FILE = "lengths.jsonl"  # of responses, a line a group
RESPONSES_FILE = "responses.jsonl"  # a few of every step
SAMPLES_FILE = "timeline.jsonl"  # engines over time, a line a step
TIMELINE_FILE = "timeline.json"  # the same for Perfetto
REPORT_FILE = "report.html"

MOST_BYTES = 16_000_000  # beyond it the older half of the lines goes


def metrics_file(project: str, experiment: str) -> Path:
    """Where verl's file logger writes."""
    if (named := os.environ.get("VERL_FILE_LOGGER_PATH")) is not None:
        return Path(named)
    return Path(os.environ.get("VERL_FILE_LOGGER_ROOT", ".")).expanduser() / project / f"{experiment}.jsonl"


def set_aside(path: Path) -> None:
    """Keep a file that would be overwritten, unless it is empty: `train.log` becomes `train.1.log`, or the next."""
    if path.exists() and path.stat().st_size:
        path.rename(_numbered(path, max(_numbers(path), default=0) + 1))


def last_set_aside(path: Path) -> Path | None:
    """The newest of the files that `set_aside` has made of this one."""
    return _numbered(path, max(numbers)) if (numbers := _numbers(path)) else None


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def _numbers(path: Path) -> list[int]:
    found = (one.name[len(path.stem) + 1 : len(one.name) - len(path.suffix)] for one in path.parent.glob("*"))
    return [int(number) for number in found if number.isdecimal() and _numbered(path, int(number)).exists()]


class BoundedFile:
    """A file that grows by a line of JSON a step and stays small: up to `most_bytes` of the newest lines."""

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
