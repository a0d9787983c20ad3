"""What the quick start reads in the training process's log: the phases of its start-up, and its last words."""

import re
from dataclasses import dataclass
from pathlib import Path

_PHASE = re.compile(r"(\[\d+ s\] .*)$")  # `log_phase`'s; Ray writes the process's name in front of it
_LAST_WORDS = "async_dapo: "  # what the entry ends with when a run has failed
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(slots=True)
class TrainLog:
    """Grows as the file does."""

    file: Path
    _read_bytes: int = 0

    def new_phases(self) -> list[str]:
        """Of the lines that have been completed since the last call."""
        if not self.file.exists():
            return []
        with self.file.open("rb") as stream:
            stream.seek(self._read_bytes)
            complete, newline, _ = stream.read().rpartition(b"\n")
        self._read_bytes += len(complete) + len(newline)
        lines = _COLOUR.sub("", complete.decode(errors="replace")).splitlines()
        return [match[1] for line in lines if (match := _PHASE.search(line))]

    def last_words(self) -> str | None:
        """The error that ended the run, with its remedy; None if it did not say."""
        if not self.file.exists():
            return None
        lines = self.file.read_text(errors="replace").splitlines()
        said = [line.removeprefix(_LAST_WORDS) for line in lines if line.startswith(_LAST_WORDS)]
        return said[-1] if said else None
