"""What the quick start shows while it works: a bar on a terminal, one line per step elsewhere."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import rich.progress
from rich.console import Console
from rich.markup import escape

from ...async_dapo.record.console import Pace, step_line

_STARTING = "starting Ray, vLLM and FSDP (about a minute)"

_PHASE = re.compile(r"(\[\d+ s\] .*)$")  # `log_phase`'s; Ray writes the process's name in front of it
_LAST_WORDS = "async_dapo: "  # what the entry ends with when a run has failed
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Progress:
    """Stages in order: preparing the model, starting the stack, training."""

    def __init__(self, console: Console, *, steps: int) -> None:
        self._console = console
        self._pace = Pace(steps)
        self._bar = rich.progress.Progress(
            rich.progress.SpinnerColumn(),
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(_STARTING, total=steps)

    def __enter__(self) -> Self:
        self._bar.start()
        if not self._console.is_terminal:
            self._print(f"preparing model and data; then {_STARTING}")
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def preparing(self, share: float) -> None:
        """`share` of the warm start is done [0-1]; it runs before anything else and only once."""
        if share < 1:
            self._bar.update(self._task, description=f"warm start of the tiny model: {share:.0%}")
        else:
            self._bar.update(self._task, description=_STARTING)

    def phase(self, text: str) -> None:
        """Of the start-up, or of a validation: `[58 s] engine 1 of 1`."""
        if self._console.is_terminal:
            self._bar.update(self._task, description=escape(text))
        else:
            self._print(text)

    def logged(self, step: int, values: Mapping[str, float]) -> None:
        """The step's line; on a terminal it stays above the bar."""
        if self._console.is_terminal:
            self._bar.update(self._task, completed=step, description="training")
        self._print(step_line(step, values, pace=self._pace))

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


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
    """The training process's log, as it grows: the phases of the start-up, and the last words."""

    def new_phases(self) -> list[str]:
        """Of the lines that have been completed since the last call."""
        lines = [_COLOUR.sub("", line.decode(errors="replace")) for line in self.new_lines()]
        return [match[1] for line in lines if (match := _PHASE.search(line))]

    def last_words(self) -> str | None:
        """The error that ended the run, with its remedy; None if it did not say."""
        if not self.file.exists():
            return None
        lines = self.file.read_text(errors="replace").splitlines()
        said = [line.removeprefix(_LAST_WORDS) for line in lines if line.startswith(_LAST_WORDS)]
        return said[-1] if said else None
