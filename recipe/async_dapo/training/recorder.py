"""What a run writes of itself: the trainer calls one recorder, that of `async_dapo.recorder` or this one."""

import importlib
import json
import numbers
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..core.outcome import CauseCounts
from ..engines.load_balancer import LoadBalancerStats
from ..record import keys
from ..record.run_files import RUN_FILE, STEPS_FILE, replacing, write_lines
from ..record.run_record import RunDescription, StepRecord, read_steps
from ..rollout.reports import RoundRecord

if TYPE_CHECKING:  # reports read records without TransferQueue
    from transfer_queue import KVBatchMeta


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationAnswers:
    """What a validation has got of the model, a place for each answer; those that failed are absent.

    Attributes:
        uids: of their prompts.
        sources: the prompts' data sources.
        prompts, texts: as text, without special tokens.
        scores: their rewards.
    """

    uids: Sequence[str]
    sources: Sequence[str]
    prompts: Sequence[str]
    texts: Sequence[str]
    scores: Sequence[float]


class Recorder:
    """One of verl's loggers: `log` is called with the metrics of every step. It writes the run's record, with what
    groups fail of. A subclass takes the rest, which this one lets pass.

    Attributes:
        meter: class of the engines' load meters, `package.module.Class`: a subclass of `LoadMeter`; None: that itself.
    """

    meter: str | None = None

    def __init__(self) -> None:
        self._cause_counts = CauseCounts()
        self._causes: Counter[tuple[str, str]] = Counter()
        self._folder: Path | None = None
        self._description: RunDescription
        self._is_begun = False

    def write_to(self, folder: Path, description: RunDescription) -> None:
        """Where the record is; without a folder there is none."""
        self._folder, self._description = folder, description

    def round_closed(self, step: int, record: RoundRecord) -> None:
        self._causes.update(self._cause_counts.count(record.summary.outcomes))

    def batch_made(self, step: int, batch: "KVBatchMeta") -> None:
        """These trajectories are trained next; the store has all of them."""

    def validation_closed(self, record: RoundRecord) -> None:
        self.engines_asked(record.balancer)
        for (reason, what), count in self._cause_counts.count(record.summary.outcomes).items():
            self._causes[f"in validation, {reason}", what] += count

    def validated(self, answers: ValidationAnswers) -> None:
        """A validation's answers have been scored; its metrics follow."""

    def take_causes(self) -> dict[str, int]:
        """What groups have failed of since this was asked last -> groups."""
        causes, self._causes = self._causes, Counter()
        return {f"{reason}: {what}" if what else reason: count for (reason, what), count in causes.items()}

    def engines_asked(self, balancer: LoadBalancerStats) -> None:
        """What engines held, each time the load balancer was asked: in the order of time."""

    def begin_phase(self, name: str) -> None:
        """The trainer turns to something else, for example to the rollout."""

    def end_phase(self) -> None: ...

    def begin_record(self, folder: Path, *, started_s: float, first_step: int) -> None:
        """The record of the run begins in this folder, or goes on there from a step.

        Args:
            started_s: when the run was started first [s since the epoch].
        """

    def log(self, data: Mapping[str, Any], step: int) -> None:
        if self._folder is None:
            return
        if not self._is_begun:
            passed_s = data.get(keys.STEP_S, 0.0) + data.get(keys.VALIDATE_S, 0.0)
            first_step = step if keys.STEP_S in data else step + 1
            self._begin(self._folder, first_step=first_step, began_s=time.time() - passed_s)
        values = {key: float(value) for key, value in data.items() if isinstance(value, numbers.Real)}
        time_s = time.time() - self._description.started_s
        line = StepRecord(step=step, time_s=time_s, data=values, causes=self.take_causes())
        with (self._folder / STEPS_FILE).open("a") as stream:
            stream.write(json.dumps(asdict(line)) + "\n")

    def _begin(self, folder: Path, *, first_step: int, began_s: float) -> None:
        """A resumed run goes on with its record, from the step that it trains first; another one starts a new one.

        Args:
            began_s: when what is logged first began, as far as it says [s since the epoch].
        """
        folder.mkdir(parents=True, exist_ok=True)
        steps_file = folder / STEPS_FILE
        kept = [line for line in read_steps(steps_file) if line.step < first_step] if first_step > 1 else []
        if kept:
            self._description = replace(self._description, started_s=began_s - kept[-1].time_s)
        self.begin_record(folder, started_s=self._description.started_s, first_step=first_step if kept else 1)
        write_lines(steps_file, map(asdict, kept))
        with replacing(folder / RUN_FILE) as file:
            file.write(json.dumps(asdict(self._description), indent=2).encode() + b"\n")
        self._is_begun = True


def recorder_class(name: str | None) -> type[Recorder]:
    """
    Args:
        name: of a subclass, `package.module.Class`; None: the class above.
    """
    if name is None:
        return Recorder
    module, _, class_name = name.rpartition(".")
    found = getattr(importlib.import_module(module), class_name)
    assert issubclass(found, Recorder)
    return cast(type[Recorder], found)
