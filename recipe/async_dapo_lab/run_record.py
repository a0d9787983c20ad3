"""The record of a run, as `extensions/record` of the recipe writes it: what was run, and a line a step."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .run_files import RUN_FILE, read_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """What was run; None where it is not known."""

    name: str
    system: str  # this recipe's strategy and stop rule, or verl's trainer mode
    started_s: float  # since the epoch; of the first start, where it was resumed
    gpus: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # option -> value, those that a reader asks for first
    checkpoints: str = ""  # folder
    launch: Mapping[str, Any] = field(default_factory=dict)  # as `note_launch` of the recipe has noted it
    versions: Mapping[str, str] = field(default_factory=dict)  # package -> version
    machine: str = ""


def read_description(folder: Path) -> RunDescription | None:
    """That of the run whose record is in a folder; None where it has none.

    Raises:
        ValueError: for a file that no run has written, or not to its end.
    """
    file = folder / RUN_FILE
    if not file.exists():
        return None
    try:
        return RunDescription(**json.loads(file.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file} is not what a run writes: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A line of `steps.jsonl`.

    Attributes:
        time_s: when the step was logged, since the start of the run [s].
        data: its metrics.
        causes: of the groups that failed in it: what they failed of -> groups.
    """

    step: int
    time_s: float
    data: Mapping[str, float]
    causes: Mapping[str, int] = field(default_factory=dict)


def all_causes(steps: Iterable[StepRecord]) -> Counter[str]:
    """What groups of a run have failed of -> groups."""
    return sum((Counter(step.causes) for step in steps), Counter())


def read_steps(path: Path) -> list[StepRecord]:
    """The complete lines of a record, this recipe's or verl's own `metrics.jsonl`, which has no times."""
    return [StepRecord(**({"time_s": float("nan")} | line)) for line in read_lines(path)]
