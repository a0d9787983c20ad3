"""What the quick start shows while it works: a bar on a terminal, one line per step elsewhere."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import rich.progress
from rich.console import Console

from . import run_metrics as keys


class Progress:
    """Stages in order: preparing the model, starting the stack, training."""

    def __init__(self, console: Console, *, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._accuracy: float | None = None
        self._bar = rich.progress.Progress(
            rich.progress.SpinnerColumn(),
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting Ray, vLLM and FSDP (about a minute)", total=steps)

    def __enter__(self) -> Self:
        self._bar.start()
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
            self._bar.update(self._task, description="starting Ray, vLLM and FSDP (about a minute)")

    def logged(self, step: int, values: Mapping[str, float]) -> None:
        self._accuracy = values.get(keys.ACCURACY, self._accuracy)
        parts = [] if self._accuracy is None else [f"accuracy {self._accuracy:.2f}"]
        if keys.REWARD in values:
            parts.append(f"reward {values[keys.REWARD]:.2f}")
        if keys.STOPPED_EARLY in values:
            parts.append(_stop(values))
        text = ", ".join(parts)
        if self._console.is_terminal:
            self._bar.update(self._task, completed=step, description=text)
        else:
            self._console.print(f"step {step}/{self._steps}: {text}", highlight=False, soft_wrap=True)


def _stop(values: Mapping[str, float]) -> str:
    if values[keys.STOPPED_EARLY]:
        return f"stop: target reached, {values[keys.INTERRUPTED]:.0f} groups interrupted"
    return "stop: target reached, all had ended"
