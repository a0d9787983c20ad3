"""The recipe's own log lines: in every process that has some, of the start-up, and the last one of a failed run. What
others print and log can be left out for a while.
"""

import logging
import os
import re
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO

logger = logging.getLogger(__name__)

SLOW_S = 30.0  # that a part of the start-up may take before it is told what the start waits for

# When the run was started [s since the epoch]; `extensions/shipping` sends it to all nodes.
STARTED_VARIABLE = "ASYNC_DAPO_STARTED_S"

# What Ray says of an actor that is dead, in lines of their own.
_DEAD = re.compile(r"class_name: (\S+\.)?(?P<name>\w+)(.*?\bpid: (?P<pid>\d+))?(.*?\bip: (?P<ip>[\w.:]+))?", re.DOTALL)
GO_ON = "the same command goes on from the last checkpoint, if there is one and trainer.resume_mode=auto"
# What vLLM logs before an engine ends; the record's other lines begin alike, and all end with CRLF.
_FATAL = re.compile(r"^(?P<start>.*)EngineCore (encountered a fatal error|failed to start)\.\r?$", re.MULTILINE)
LOOK_ABOVE = f"the traceback above says where; once its cause is gone, {GO_ON}"


class _BareInfo(logging.Formatter):
    """What goes well is told as it is; what does not, with its level and time."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno <= logging.INFO else f"{record.levelname}:{self.formatTime(record)}:{text}"


def show_logs() -> None:
    """Show what the recipe logs from INFO on, like verl's own lines; importing vLLM silences all others below ERROR."""
    handler = logging.StreamHandler()
    handler.setFormatter(_BareInfo("%(message)s"))
    package_logger = logging.getLogger(__package__.rpartition(".")[0])
    package_logger.handlers = [handler]
    package_logger.setLevel(logging.INFO)
    package_logger.propagate = False


@contextmanager
def quiet() -> Iterator[None]:
    """What verl prints, logs and warns of meanwhile is left out."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def note_start() -> None:
    """Phases are timed from now on, unless this process was started by one that has noted it already."""
    os.environ.setdefault(STARTED_VARIABLE, repr(time.time()))


def log_phase(text: str) -> None:
    """One line of the start-up, with the seconds since the run was started: `[58 s] engine 3 of 8`."""
    logger.info("[%.0f s] %s", max(0.0, time.time() - started_s()), text)


@contextmanager
def told_if_slow(what: str) -> Iterator[None]:
    """Log what the start waits for if it takes longer than `SLOW_S`, as an error, which the command
    `check` lets through. It is waited for all the same.

    Args:
        what: that is done meanwhile: `the import of module X`.
    """
    timer = threading.Timer(SLOW_S, logger.error, ["the start waits for %s, for %g s by now", what, SLOW_S])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def started_s() -> float:
    """When the run was started [s since the epoch]; now, where it was not noted."""
    return float(os.environ.get(STARTED_VARIABLE, time.time()))


def last_line(kind: str, text: str) -> str:
    """The last line of a run that failed: what went wrong.

    Args:
        kind: the error's class.
        text: its message; of several lines, as of errors from other processes, the last one says most.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    what = lines[-1] if lines else kind
    if dead := _DEAD.search(text):
        what = f"{kind}: {dead['name']}{place_of(text)} died"
    named = what if re.match(r"[\w.]*(Error|Exception|Died)\b", what) or not lines else f"{kind}: {what}"
    return f"{named}; {LOOK_ABOVE}"


def engine_exception(log: str) -> str | None:
    """The exception that an engine ended with, in one line; None if its log has none.

    Args:
        log: what the engine's processes wrote.
    """
    what, in_traceback = None, False
    for record in list(_FATAL.finditer(log))[-1:]:
        start = record["start"]
        for line in log[record.end() :].splitlines():
            text = line.removeprefix(start)
            if text == line or not text.strip():
                continue
            if in_traceback and not text.startswith(" "):
                what, in_traceback = text.strip(), False
            in_traceback = in_traceback or text.startswith("Traceback ")
    return what


def place_of(text: str) -> str:
    """Where an actor was, as Ray's words on its death have it; empty if they do not say."""
    dead = _DEAD.search(text)
    return f" (node {dead['ip']}, pid {dead['pid']})" if dead and dead["pid"] else ""
