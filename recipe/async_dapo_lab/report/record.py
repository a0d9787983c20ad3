"""The files that the lab's recorder writes beside the recipe's record of a run."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..run_files import ANSWERS_FILE, CALLS_FILE, EPISODES_FILE, LENGTHS_FILE, SAMPLES_FILE, BoundedFile
from . import timeline
from .calls import summed
from .timeline import StepTimeline


class LabRecord:
    """Timeline, lengths, some answers and some episodes of a run.

    Args:
        started_s: when the run was started first [s since the epoch].
        first_step: that is written; what the files have of it and of later ones goes.
    """

    def __init__(self, folder: Path, *, started_s: float, first_step: int) -> None:
        self._started_s = started_s
        names = (SAMPLES_FILE, LENGTHS_FILE, ANSWERS_FILE, EPISODES_FILE)
        files = [BoundedFile(folder / name) for name in names]
        self._timeline, self._lengths, self._answers, self._episodes = files
        self._calls = BoundedFile(folder / CALLS_FILE, summed=summed)
        for file in (*files, self._calls):
            file.keep_before(first_step)

    def add(
        self,
        step: int,
        taken: StepTimeline,
        *,
        lengths: Iterable[Mapping[str, Any]],
        answers: Iterable[Mapping[str, Any]] = (),
        episodes: Iterable[Mapping[str, Any]] = (),
        calls: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """
        Args:
            lengths: lines of `length_lines`.
            answers: of `sampled`, if the step was validated.
            episodes: lines of `Episode`.
            calls: lines of `call_line`.
        """
        self._timeline.add(timeline.line_of(step, taken, origin_s=self._started_s))
        self._lengths.add(*lengths)
        self._answers.add(*({"step": step, **answer} for answer in answers))
        self._episodes.add(*episodes)
        self._calls.add(*calls)
