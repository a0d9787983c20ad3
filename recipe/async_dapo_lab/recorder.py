"""What the lab records of a run beside the recipe's record: for the report and the planner.

`async_dapo.recorder` names the class; `async_dapo_lab.train` sets it.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..async_dapo.record import keys
from ..async_dapo.rollout.reports import RoundRecord
from ..async_dapo.training.recorder import Recorder
from .report.health import Hints
from .report.lengths import length_lines
from .run_files import LENGTHS_FILE, BoundedFile

logger = logging.getLogger(__name__)


class LabRecorder(Recorder):
    """Records all lengths, and logs hints: with every step, what it has collected."""

    def __init__(self) -> None:
        super().__init__()
        self._hints = Hints()
        self._lengths: list[Mapping[str, Any]] = []
        self._file: BoundedFile | None = None

    def round_closed(self, step: int, record: RoundRecord) -> None:
        super().round_closed(step, record)
        self._lengths += length_lines(step, record.summary.outcomes)

    def begin_record(self, folder: Path, *, first_step: int) -> None:
        self._file = BoundedFile(folder / LENGTHS_FILE)
        self._file.keep_before(first_step)

    def log(self, data: Mapping[str, Any], step: int) -> None:
        super().log(data, step)
        lengths, self._lengths = self._lengths, []
        if self._file is not None:
            self._file.add(*lengths)
        if keys.STEP_S in data and (hint := self._hints.of_step(step, data)) is not None:
            logger.info("step %d: hint: %s", step, hint)
