"""What a run writes of itself in `async_dapo.report_dir`: `run.json`, what it is, and `steps.jsonl`, a line a step."""

import json
import numbers
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config.options import AsyncDAPOConfig
from ...core.failures import CauseCounts
from ...record import keys
from ...record.run_files import lines_before, replacing
from ...rollout.manager import RoundRecord
from ...runtime.logs import log_phase
from ...training.observer import Observer
from .description import describe

if TYPE_CHECKING:  # figures of evaluations are written without TransferQueue
    from transfer_queue import KVBatchMeta

    from ...training.run_trainer import RunTrainer

RUN_FILE, STEPS_FILE = "run.json", "steps.jsonl"


class Recorder(Observer):
    """Writes the run's record, with what groups fail of. A subclass, which `async_dapo.recorder` names, may take more
    of what an observer is told.

    Attributes:
        meter: class of the engines' load meters, `package.module.Class`: a subclass of `LoadMeter`; None: that itself.
    """

    meter: str | None = None

    def __init__(self, options: AsyncDAPOConfig) -> None:
        self._options = options
        self._cause_counts = CauseCounts()
        self._causes: Counter[tuple[str, str]] = Counter()
        self._folder: Path | None = None
        self._description: dict[str, Any] = {}
        self._is_begun = False

    def training_begins(self, trainer: "RunTrainer") -> None:
        if self._options.report_dir is not None:
            description = describe(trainer.config, self._options, prompts=len(trainer.train_dataset))
            self.write_to(Path(self._options.report_dir), description)
            log_phase(f"the record of this run: {self._options.report_dir}")

    def write_to(self, folder: Path, description: Mapping[str, Any]) -> None:
        """Where the record is; without a folder there is none."""
        self._folder, self._description = folder, {**description}

    def batch_made(self, step: int, record: RoundRecord, batch: "KVBatchMeta") -> None:
        self._causes.update(self._cause_counts.count(record.summary.outcomes))

    def validation_closed(self, record: RoundRecord) -> None:
        for (reason, what), count in self._cause_counts.count(record.summary.outcomes).items():
            self._causes[f"in validation, {reason}", what] += count

    def take_causes(self) -> dict[str, int]:
        """What groups have failed of since this was asked last -> groups."""
        causes, self._causes = self._causes, Counter()
        return {f"{reason}: {what}" if what else reason: count for (reason, what), count in causes.items()}

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
        line = {
            "step": step,
            "time_s": time.time() - self._description["started_s"],
            "data": {key: float(value) for key, value in data.items() if isinstance(value, numbers.Real)},
            "causes": self.take_causes(),
        }
        with (self._folder / STEPS_FILE).open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def _begin(self, folder: Path, *, first_step: int, began_s: float) -> None:
        """A resumed run goes on with its record, from the step that it trains first; another one starts a new one.

        Args:
            began_s: when what is logged first began, as far as it says [s since the epoch].
        """
        folder.mkdir(parents=True, exist_ok=True)
        steps_file = folder / STEPS_FILE
        kept = lines_before(steps_file, first_step) if first_step > 1 else []
        if kept:
            self._description["started_s"] = began_s - json.loads(kept[-1])["time_s"]
        started_s: float = self._description["started_s"]
        self.begin_record(folder, started_s=started_s, first_step=first_step if kept else 1)
        with replacing(steps_file) as file:
            file.writelines(kept)
        with replacing(folder / RUN_FILE) as file:
            file.write(json.dumps(self._description, indent=2).encode() + b"\n")
        self._is_begun = True
