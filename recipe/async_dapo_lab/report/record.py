"""The files that the lab's recorder writes beside the recipe's record of a run."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..run_files import LENGTHS_FILE, SAMPLES_FILE, BoundedFile
from . import timeline
from .timeline import StepTimeline


class LabRecord:
    """Timeline and lengths of a run.

    Args:
        started_s: when the run was started first [s since the epoch].
        first_step: that is written; what the files have of it and of later ones goes.
    """

    def __init__(self, folder: Path, *, started_s: float, first_step: int) -> None:
        self._started_s = started_s
        self._timeline, self._lengths = (BoundedFile(folder / name) for name in (SAMPLES_FILE, LENGTHS_FILE))
        for file in (self._timeline, self._lengths):
            file.keep_before(first_step)

    def add(self, step: int, taken: StepTimeline, *, lengths: Iterable[Mapping[str, Any]]) -> None:
        """
        Args:
            lengths: lines of `length_lines`.
        """
        self._timeline.add(timeline.line_of(step, taken, origin_s=self._started_s))
        self._lengths.add(*lengths)
