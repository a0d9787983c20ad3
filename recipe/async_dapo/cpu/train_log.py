"""What the quick start reads in the training process's log: the phases of its start-up, and its last words."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from .growing_file import GrowingFile

_PHASE = re.compile(r"(\[\d+ s\] .*)$")  # `log_phase`'s; Ray writes the process's name in front of it
_LAST_WORDS = "async_dapo: "  # what the entry ends with when a run has failed
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(slots=True)
class TrainLog:
    """Grows as the file does."""

    file: Path
    _lines: GrowingFile = field(init=False)

    def __post_init__(self) -> None:
        self._lines = GrowingFile(self.file)

    def new_phases(self) -> list[str]:
        """Of the lines that have been completed since the last call."""
        lines = [_COLOUR.sub("", line.decode(errors="replace")) for line in self._lines.new_lines()]
        return [match[1] for line in lines if (match := _PHASE.search(line))]

    def last_words(self) -> str | None:
        """The error that ended the run, with its remedy; None if it did not say."""
        if not self.file.exists():
            return None
        lines = self.file.read_text(errors="replace").splitlines()
        said = [line.removeprefix(_LAST_WORDS) for line in lines if line.startswith(_LAST_WORDS)]
        return said[-1] if said else None
