"""A process with a time limit: how it ended, in words, and nothing of it left behind."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..quickstart.supervision import TrainingProcess

_WATCH_S = 0.5
_ERROR = re.compile(
    r"^(?:\x1b\[[\d;]*m|\(.*?\) )*(?P<words>(async_dapo: .*|[\w.]*(Error|Exception|Mismatch|Dead)\b.*))$"
)
# vLLM's, where an engine has ended: the error that has ended it stands before them.
_FOLLOWS = ("Engine core initialization failed", "EngineDeadError")


def run_supervised(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    timeout_s: float,
    on_watch: Callable[[TrainingProcess], None] = lambda process: None,
) -> str:
    """Run a command to its end.

    Args:
        on_watch: called every half second while it runs.

    Returns:
        Empty if all is well, else how it ended.
    """
    began_s = time.monotonic()
    with TrainingProcess(command, environment=environment, log_file=log) as process:
        while process.exit_code is None:
            if time.monotonic() - began_s > timeout_s:
                return f"not done after {timeout_s:.0f} s, ended it; its log: {log}"
            on_watch(process)
            process.watch(_WATCH_S)
        if process.exit_code == 0:
            return ""
        return f"{last_words(log) or f'exit code {process.exit_code}'}; its log: {log}"


def last_words(log: Path) -> str:
    """The last line of a log that is an error, if possible not one that only says that there was another."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    errors = [found["words"] for line in lines if (found := _ERROR.match(line.strip()))]
    causes = [words for words in errors if not any(follows in words for follows in _FOLLOWS)]
    return next(reversed(causes or errors), "")
