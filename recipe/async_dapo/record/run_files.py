"""Files that a run writes while it trains, and that one which goes on takes up again."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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


def lines_before(path: Path, step: int) -> list[bytes]:
    """Of a file with a line of JSON a step: the complete lines of the steps before; none where there is no file."""
    if not path.exists():
        return []
    complete, _, _ = path.read_bytes().rpartition(b"\n")
    return [line + b"\n" for line in complete.split(b"\n") if line and json.loads(line)["step"] < step]


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name when it is whole and on the disk."""
    partial = path.with_suffix(".part")
    with open(partial, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
