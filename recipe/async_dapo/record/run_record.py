"""What a run leaves for its report, in one folder: `run.json` says what it is, `steps.jsonl` has a line a step."""

import json
import numbers
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from . import keys
from .run_files import RUN_FILE, STEPS_FILE, read_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """What was run; None where it is not known."""

    name: str
    system: str  # this recipe's strategy and stop rule, or verl's trainer mode
    started_s: float  # since the epoch; of the first start, where it was resumed
    gpus: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # option -> value, those that a reader asks for first


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


class RunSource(Protocol):
    """What has something to say of a run beside its metrics."""

    def take_causes(self) -> Mapping[str, int]:
        """What groups have failed of since this was asked last -> groups."""

    def begin_record(self, folder: Path, *, started_s: float, first_step: int) -> None:
        """The record begins in this folder, or goes on there from a step."""


class RunRecorder:
    """A logger backend, as verl's `Tracking` has them: `log` is called with every step's metrics."""

    def __init__(self, folder: Path, description: RunDescription, source: RunSource) -> None:
        self._folder = folder
        self._description = description
        self._source = source
        self._is_begun = False

    def log(self, data: Mapping[str, Any], step: int) -> None:
        if not self._is_begun:
            passed_s = data.get(keys.STEP_S, 0.0) + data.get(keys.VALIDATE_S, 0.0)
            self._begin(first_step=step if keys.STEP_S in data else step + 1, began_s=time.time() - passed_s)
        values = {key: float(value) for key, value in data.items() if isinstance(value, numbers.Real)}
        time_s = time.time() - self._description.started_s
        line = StepRecord(step=step, time_s=time_s, data=values, causes=self._source.take_causes())
        with (self._folder / STEPS_FILE).open("a") as stream:
            stream.write(json.dumps(asdict(line)) + "\n")

    def _begin(self, first_step: int, began_s: float) -> None:
        """A resumed run goes on with its record, from the step that it trains first; another one starts a new one.

        Args:
            began_s: when what is logged first began, as far as it says [s since the epoch].
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        steps_file = self._folder / STEPS_FILE
        kept = [line for line in read_steps(steps_file) if line.step < first_step] if first_step > 1 else []
        if kept:
            self._description = replace(self._description, started_s=began_s - kept[-1].time_s)
        started_s = self._description.started_s
        self._source.begin_record(self._folder, started_s=started_s, first_step=first_step if kept else 1)
        steps_file.write_text("".join(json.dumps(asdict(line)) + "\n" for line in kept))
        (self._folder / RUN_FILE).write_text(json.dumps(asdict(self._description), indent=2) + "\n")
        self._is_begun = True


def all_causes(steps: Iterable[StepRecord]) -> Counter[str]:
    """What groups of a run have failed of -> groups."""
    return sum((Counter(step.causes) for step in steps), Counter())


def read_steps(path: Path) -> list[StepRecord]:
    """The complete lines of a record, this recipe's or verl's own `metrics.jsonl`, which has no times."""
    return [StepRecord(**({"time_s": float("nan")} | line)) for line in read_lines(path)]
