"""verl's loggers, with this recipe's line a step in place of verl's, and its file kept over a resume."""

import logging
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig
from verl.utils.tracking import Tracking

from ..record.console import Pace, step_line
from ..record.run_files import last_set_aside, lines_before, metrics_file, set_aside

logger = logging.getLogger(__name__)

CONSOLE, FILE = "console", "file"  # verl's backends


class StepLines:
    """A logger in the place of verl's console logger, which writes all metrics of a step into one line.

    Args:
        speedup: of a rehearsal: virtual seconds in a real one.
        total_steps: of the run, if that is known.
    """

    def __init__(self, speedup: float = 1.0, total_steps: int | None = None) -> None:
        self._speedup = speedup
        self._pace = None if total_steps is None else Pace(total_steps)

    def log(self, data: Mapping[str, Any], step: int) -> None:
        logger.info(step_line(step, data, speedup=self._speedup, pace=self._pace))


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


def extend(tracking: Tracking, *, total_steps: int | None = None, earlier_metrics: bytes = b"") -> None:
    """Give verl's loggers this recipe's line, in place.

    Args:
        total_steps: of the whole run; None: not known.
        earlier_metrics: lines that the file logger's file begins with.
    """
    if FILE in tracking.logger:
        tracking.logger[FILE].fp.write(earlier_metrics)
    if CONSOLE in tracking.logger:
        tracking.logger[CONSOLE] = StepLines(total_steps=total_steps)
