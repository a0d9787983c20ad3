"""verl's loggers, with this recipe's line a step in place of verl's, and its file kept over a resume."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from ...config.options import AsyncDAPOConfig
from ...record.run_files import last_set_aside, lines_before, metrics_file, set_aside
from ...training.observer import Observer
from .step_line import Pace, step_line

if TYPE_CHECKING:  # which makes the observer
    from ...training.run_trainer import RunTrainer

logger = logging.getLogger(__name__)

CONSOLE, FILE = "console", "file"  # verl's names


class StepLog(Observer):
    """The observer that takes the place of verl's console logger, which writes all metrics of a step into one line, and
    that has verl's file logger go on with the lines before a resume.

    Attributes:
        speedup: of a rehearsal: virtual seconds in a real one. How many are left is not said there.
    """

    speedup = 1.0
    _is_shown = False

    def __init__(self, options: AsyncDAPOConfig) -> None:
        pass

    def training_begins(self, trainer: "RunTrainer") -> None:
        self._pace = Pace(trainer.total_training_steps)
        self._earlier = keep_metrics_file(trainer.config, trainer.global_steps)

    def loggers_made(self, loggers: dict[str, Any]) -> None:
        if FILE in loggers:
            loggers[FILE].fp.write(self._earlier)
        self._is_shown = loggers.pop(CONSOLE, None) is not None

    def log(self, data: Mapping[str, Any], step: int) -> None:
        if self._is_shown:
            pace = self._pace if self.speedup == 1.0 else None
            logger.info(step_line(step, data, speedup=self.speedup, pace=pace))


def keep_metrics_file(config: DictConfig, step: int) -> bytes:
    """verl's file logger overwrites its file: what is there is set aside, before the logger is made.

    Args:
        step: that the run resumes from; 0: it is a new one.

    Returns:
        The lines up to that step, which the new file begins with.
    """
    if FILE not in config.trainer.logger:
        return b""
    path = metrics_file(config.trainer.project_name, config.trainer.experiment_name)
    set_aside(path)
    earlier = last_set_aside(path)
    if step == 0 or earlier is None:
        return b""
    return b"".join(lines_before(earlier, step + 1))
