"""A run as its report sees it: its record, read from the folder it was written to."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TypeVar

from ...async_dapo.config.extensions import declared, not_here
from ...async_dapo.record import keys
from ...async_dapo.record.words import accuracies_of, accuracy_name, accuracy_of
from ..run_files import STEPS_FILE
from ..run_record import RunDescription, StepRecord, all_causes, read_description, read_steps

VERL_FILE = "metrics.jsonl"  # of verl's file logger, where the quick start and the benchmarks put it
T = TypeVar("T")


class NoRecord(ValueError):
    """A folder holds no record of a run."""


class StepMetrics:
    """What is asked of a run's metrics by step; step 0 is the validation before training."""

    __slots__ = ()
    by_step: dict[int, dict[str, float]]

    def series(self, key: str) -> list[tuple[int, float]]:
        """By step; steps that did not log it, or no finite number, are left out."""
        found = ((step, values.get(key, math.nan)) for step, values in sorted(self.by_step.items()))
        return [(step, value) for step, value in found if math.isfinite(value)]

    def last(self, key: str) -> float | None:
        """The newest value; None where the run never logged it."""
        points = self.series(key)
        return points[-1][1] if points else None

    def accuracy(self) -> list[tuple[int, float]]:
        """Of the validations, whatever their data source, by step."""
        found = ((step, accuracy_of(values)) for step, values in sorted(self.by_step.items()))
        return [(step, accuracy) for step, accuracy in found if accuracy is not None and math.isfinite(accuracy)]

    def accuracies(self) -> dict[str, list[tuple[int, float]]]:
        """The same of each data source, by its name."""
        names = {key for values in self.by_step.values() for key in accuracies_of(values)}
        return {key.removeprefix(keys.ACCURACY_PREFIX): self.series(key) for key in sorted(names)}

    def accuracy_name(self) -> str:
        """Which metric that is; empty without a validation."""
        return next((name for values in self.by_step.values() if (name := accuracy_name(values))), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(StepMetrics):
    """A run as its record tells it. Means and medians leave out the first step, which compiles and warms up, unless it
    is the only one."""

    folder: Path
    description: RunDescription
    by_step: dict[int, dict[str, float]]
    causes: Counter[str]

    @classmethod
    def load(cls, folder: Path) -> "Run":
        """
        Args:
            folder: or the file of verl's file logger itself, as `PROJECT/EXPERIMENT.jsonl`.

        Raises:
            NoRecord: when the folder has none.
        """
        if folder.is_file():
            files, folder = [folder], folder.with_suffix("")
        else:
            files = [file for name in (STEPS_FILE, VERL_FILE) if (file := folder / name).exists()]
        lines = _steps_of(files[0]) if files else []
        if not lines:
            what = f"no {STEPS_FILE} (written by a run) and no {VERL_FILE} (verl's file logger)"
            absent = "" if "record" in declared() else f"; {not_here('record')}, which writes the first one"
            raise NoRecord(f"{folder}: {what}, or it has no line of a step{absent}")
        by_step: dict[int, dict[str, float]] = {}
        for line in lines:
            by_step.setdefault(line.step, {}).update(line.data)
        return cls(
            folder=folder,
            description=_description(folder, by_step),
            by_step=by_step,
            causes=all_causes(lines),
        )

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def steps(self) -> list[int]:
        """Those that were trained."""
        return sorted(step for step, values in self.by_step.items() if keys.STEP_S in values)

    @property
    def is_ours(self) -> bool:
        """Whether this recipe trained it, and not verl alone."""
        return any(key.startswith(keys.LEDGER) for values in self.by_step.values() for key in values)

    def steady(self, key: str) -> list[float]:
        """Finite values of the trained steps after the first one."""
        counted = {*after_the_first(self.steps)}
        return [value for step, value in self.series(key) if step in counted]

    def mean(self, key: str) -> float | None:
        values = self.steady(key)
        return fmean(values) if values else None

    def median(self, key: str) -> float | None:
        values = self.steady(key)
        return median(values) if values else None

    def total(self, key: str) -> float:
        return sum(value for _, value in self.series(key))

    def ledger(self) -> dict[str, int]:
        """At the end, in prompt groups; empty for a run of verl alone."""
        values = {term: self.last(keys.LEDGER + term) for term in keys.LEDGER_TERMS}
        return {term: int(value) for term, value in values.items() if value is not None}

    def hours(self) -> float:
        """Of its steps and validations: while it stood still between two starts no time passes."""
        return (self.total(keys.STEP_S) + self.total(keys.VALIDATE_S)) / 3600

    def of_sources(self, term: str) -> dict[str, list[tuple[int, float]]]:
        """A figure of each data source of a mix, by its name and by step."""
        return {source: self.series(f"{keys.SOURCE}{source}/{term}") for source in self.sources()}

    def sources(self) -> dict[str, dict[str, float]]:
        """Of each data source of a mix: counts at the end, and means of its other figures after the first step."""
        found: dict[str, dict[str, float]] = {}
        for key in sorted({key for values in self.by_step.values() for key in values if key.startswith(keys.SOURCE)}):
            source, _, term = key.removeprefix(keys.SOURCE).rpartition("/")
            value = self.last(key) if term in keys.LEDGER_TERMS else self.mean(key)
            if value is not None:
                found.setdefault(source, {})[term] = value
        return found

    def idle_ratio(self) -> float | None:
        """Of the time of the rounds and of the most requests that each had in flight [0-1]."""
        rounds_s, ratios = dict(self.series(keys.ROUND_S)), dict(self.series(keys.IDLE_RATIO))
        steps = [step for step in after_the_first(self.steps) if step in rounds_s and step in ratios]
        weights = [rounds_s[step] for step in steps]
        return fmean((ratios[step] for step in steps), weights) if any(weights) else None

    def waste_ratio(self) -> float | None:
        """Of all tokens that were thrown away or trained [0-1]."""
        discarded, trained = self.total(keys.TOKENS_DISCARDED), self.total(keys.TOKENS_TRAINED)
        return discarded / (discarded + trained) if discarded + trained else None


def _steps_of(file: Path) -> list[StepRecord]:
    try:
        return read_steps(file)
    except (ValueError, TypeError) as error:  # another file than a run's
        raise NoRecord(f"{file}: is not what a run writes: {error}") from error


def after_the_first(of_steps: Sequence[T]) -> Sequence[T]:
    """What counts for means and medians of a run: the first step compiles and warms up."""
    return of_steps[1:] or of_steps


def _description(folder: Path, by_step: dict[int, dict[str, float]]) -> RunDescription:
    try:
        found = read_description(folder)
    except ValueError as error:
        raise NoRecord(error) from error
    if found is not None:
        return found
    is_ours = any(key.startswith(keys.LEDGER) for values in by_step.values() for key in values)
    return RunDescription(name=folder.name, system="async DAPO" if is_ours else "verl", started_s=math.nan)
