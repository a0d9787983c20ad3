"""Writes reports: on demand, and at the end of a run, which they never end."""

import logging
from collections.abc import Sequence
from pathlib import Path

from ...async_dapo.record.run_files import STEPS_FILE
from ...async_dapo.runtime.logs import log_phase
from ..run_files import REPORT_FILE
from .page import page
from .run import Run

logger = logging.getLogger(__name__)


def write_report(folders: Sequence[Path], output: Path | None = None) -> Path:
    """One page of all runs. Returns its path: `output`, or `report.html` in the first folder.

    Raises:
        NoRecord: when one of the folders holds no record of a run.
    """
    path = output or folders[0] / REPORT_FILE
    path.write_text(page([Run.load(folder) for folder in folders]), encoding="utf-8")
    return path


def report_the_end(report_dir: str | Path | None) -> Path | None:
    """However the run ended, if it came to a step, and its record is on this machine. What goes wrong is logged: the
    run has ended as it did.
    """
    if report_dir is None or not Path(report_dir, STEPS_FILE).exists():
        return None
    try:
        path = write_report([Path(report_dir)])
    except Exception as error:  # a missing library, a full disk: no reason to call a training failed
        logger.warning("no report was written: %r; try python -m %s %s", error, __package__, report_dir)
        return None
    log_phase(f"report: {path}")
    return path
