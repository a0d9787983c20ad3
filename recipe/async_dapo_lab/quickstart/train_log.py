"""Files that a training writes while it is watched: complete lines, what of them a console shows, the last words."""

import re
from dataclasses import dataclass
from pathlib import Path

# `log_phase`'s lines, and warnings of calls, each once for a place; Ray writes the process's name in front of them.
_SHOWN = re.compile(r"(\[\d+ s\] .*|a call of \S+ failed, and its agent loop is told so: .*|the start waits for .*)$")
_LAST_WORDS = "async_dapo: "  # what the entry ends with when a run has failed
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(slots=True)
class GrowingFile:
    """A file that another process writes to: gives each line once, when it is complete."""

    file: Path
    _read_bytes: int = 0

    def new_lines(self) -> list[bytes]:
        """Those that have been completed since the last call; none while there is no file."""
        if not self.file.exists():
            return []
        with self.file.open("rb") as stream:
            stream.seek(self._read_bytes)
            complete, newline, _ = stream.read().rpartition(b"\n")
        self._read_bytes += len(complete) + len(newline)
        return complete.splitlines()


@dataclass(slots=True)
class TrainLog(GrowingFile):
    """The training process's log, as it grows: what a console shows of it, and the last words."""

    def new_events(self) -> list[str]:
        """Phases of the start-up and calls that failed, of the lines that have been completed since the last call."""
        lines = [_COLOUR.sub("", line.decode(errors="replace")) for line in self.new_lines()]
        return [match[1] for line in lines if (match := _SHOWN.search(line))]

    def last_words(self) -> str | None:
        """The error that ended the run, with its remedy; None if it did not say."""
        if not self.file.exists():
            return None
        lines = self.file.read_text(errors="replace").splitlines()
        said = [line.removeprefix(_LAST_WORDS) for line in lines if line.startswith(_LAST_WORDS)]
        return said[-1] if said else None
