"""Errors of the user's code in words: what was raised, and in which file and line of theirs. What trajectories fail of
is made of them.

Code of the user's may run in a process that has imported nothing but the standard library.
"""

import asyncio
import os
import re
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

LONG_CHARS = 200  # of the `repr` of an error, where its text is shorter
MOST_CHARS = 1000  # of the text of an error, and of what stands for an object
MOST_TRACEBACK_CHARS = 20_000

# Folders of code that is not the user's: this recipe's, installed packages', Python's own.
NOT_THE_USERS = (
    f"{Path(__file__).resolve().parents[1]}{os.sep}",
    *(f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a trajectory failed.

    Attributes:
        summary: one line: what was raised, and in which file and line of the user's code.
        traceback: from the user's first frame on; empty where nothing was raised.
    """

    summary: str
    traceback: str = ""

    @property
    def place(self) -> str:
        """The files and lines it was raised through; what is raised may name the prompt, so that no two are alike."""
        lines = [line for line in self.traceback.splitlines() if line.startswith("  File ")]
        return "\n".join(lines) or self.summary


class TrajectoryFailed(Exception):
    """A trajectory cannot be completed, whatever its loop does with errors; `reason` is the counted kind."""

    def __init__(self, reason: str, cause: Cause) -> None:
        super().__init__(f"{reason}: {cause.summary}")
        self.reason = reason
        self.cause = cause


class KnownPlaces:
    """The places of causes that have been logged: each is worth a line once."""

    def __init__(self) -> None:
        self._places: set[str] = set()

    def is_new(self, cause: Cause) -> bool:
        """Whether its place was not known; from now on it is."""
        is_new = cause.place not in self._places
        self._places.add(cause.place)
        return is_new


class RaisedElsewhere(Exception):
    """Code of the user's raised in another process, or returned what it must not: in one line, and the traceback."""

    def __init__(self, summary: str, traceback: str) -> None:
        super().__init__(summary, traceback)
        self.summary, self.traceback = summary, traceback

    def __str__(self) -> str:
        return self.summary


class NotLoaded(Exception):
    """Code of the user's cannot be imported."""


class ProcessLost(Exception):
    """The process in which the user's code ran has ended with it: counted in the metric of this name."""

    metric: ClassVar[str]


def describe(error: BaseException) -> str:
    """The error, and the file and line of the user's code that it comes from."""
    frames = user_frames(error) or traceback.extract_tb(error.__traceback__)
    what = shortened(in_short(error), MOST_CHARS)
    return f"{what} at {shown_name(frames[-1].filename)}:{frames[-1].lineno}" if frames else what


def in_short(error: BaseException) -> str:
    """In one line: its `repr`, or its text where the first is long, as of an HTTP client's error with all headers."""
    what = repr(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(what) > LONG_CHARS and len(text) < len(what) else what


def user_traceback(error: BaseException) -> str:
    """The traceback from the user's first frame on."""
    shown = traceback.TracebackException.from_exception(error)
    frames = user_frames(error)
    while frames and shown.stack[0] not in frames:
        shown.stack.pop(0)
    return shortened("".join(shown.format()).rstrip(), MOST_TRACEBACK_CHARS)


def shortened(text: str, most: int, *, head: float = 0.5) -> str:
    """The text, cut if it has more characters: which share of these is its head."""
    first, last = int(most * head), int(most * (1 - head))
    return text if len(text) <= most else f"{text[:first]}...(truncated)...{text[len(text) - last :]}"


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Those that belong neither to this recipe, nor to an installed package, nor to Python."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith((*NOT_THE_USERS, "<"))]


def shown_name(filename: str) -> str:
    """A file's name as the user knows it: copies that are shipped to other nodes have a checksum in theirs."""
    return re.sub(r"_[0-9a-f]{8}(?=\.py$)", "", Path(filename).name)


def place_of(task: asyncio.Task[Any]) -> str:
    """The innermost function of the user's, or else of anybody, that a task waits in, with file and line."""
    awaited: Any = task.get_coro()
    frames = []
    while awaited is not None:
        if (frame := getattr(awaited, "cr_frame", None)) is not None:
            frames.append(frame)
        awaited = getattr(awaited, "cr_await", None)
    own = [frame for frame in frames if not frame.f_code.co_filename.startswith(NOT_THE_USERS)]
    if not frames:
        return task.get_name()
    frame = (own or frames)[-1]
    return f"{frame.f_code.co_qualname} ({shown_name(frame.f_code.co_filename)}:{frame.f_lineno})"
