"""Files that a run writes while it trains: its record in the folder `async_dapo.report_dir`, and verl's metrics."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

RUN_FILE = "run.json"  # what was run
STEPS_FILE = "steps.jsonl"  # metrics, a line a step


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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete ones; none where there is no file."""
    if not path.exists():
        return []
    complete, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in complete.splitlines()]


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """In place of what is there, which stays as it was if this ends on the way."""
    with replacing(path) as file:
        file.writelines(f"{json.dumps(line)}\n".encode() for line in lines)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name when it is whole and on the disk."""
    partial = path.with_suffix(".part")
    with open(partial, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
