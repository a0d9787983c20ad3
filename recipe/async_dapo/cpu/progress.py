"""What the quick start shows while it works: a bar on a terminal, one line per step elsewhere."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import rich.progress
from rich.console import Console
from rich.markup import escape

from ..report.step_line import Pace, step_line

_STARTING = "starting Ray, vLLM and FSDP (about a minute)"


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
