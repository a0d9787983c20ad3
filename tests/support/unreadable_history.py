"""Files that are no history of prompts, whoever reads them."""

import os
from collections.abc import Callable
from pathlib import Path

from recipe.async_dapo.core.prompt_history import PassCount
from recipe.async_dapo.record.history import write_history


def _truncated(file: Path) -> str:
    write_history(str(file), {"a": PassCount(right=1.5, wrong=2.0, visits=3)}, "data")
    os.truncate(file, file.stat().st_size - 1)
    return "truncated"


def _longer_than_allowed(file: Path) -> str:
    file.touch()
    os.truncate(file, 2**40)  # a hole: it takes no room
    return r"more than \d+ bytes"


def _with(content: bytes, cause: str) -> Callable[[Path], str]:
    def write(file: Path) -> str:
        file.write_bytes(content)
        return cause

    return write


_HEAD = b'{"format":1,"data_set":"","prompts":'

UNREADABLE: dict[str, Callable[[Path], str]] = {  # each writes the file, and returns what an error says of it
    "empty": _with(b"", "truncated"),
    "truncated": _truncated,
    "longer than allowed": _longer_than_allowed,
    "no JSON": _with(b"\xff", "malformed"),
    "another kind": _with(b"[]", "Expected `object`"),
    "another format": _with(b'{"format":2,"data_set":"","prompts":{}}', "`int` <= 1"),
    "another field": _with(_HEAD + b'{},"more":1}', "unknown field"),
    "nested without end": _with(_HEAD + b'{"a":{"more":' + b"[" * 100_000, "recursion"),
    "negative counts": _with(_HEAD + b'{"a":{"right":-4,"wrong":1,"visits":1}}}', "answered right -4"),
    "infinite counts": _with(_HEAD + b'{"a":{"right":1e999,"wrong":1,"visits":1}}}', "out of range"),
}
