"""Writes reports: on demand, and at the end of a run, which they never end."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from ..files.run_files import REPORT_FILE, RESPONSES_FILE, SAMPLES_FILE, STEPS_FILE, TIMELINE_FILE
from ..logs import log_phase
from .engine_charts import engine_charts
from .estimate import estimate
from .page import Section, page
from .responses import as_html, read_responses
from .run import Run
from .timeline import read_timeline, trace

logger = logging.getLogger(__name__)


def write_report(folders: Sequence[Path], output: Path | None = None) -> Path:
    """One page of all runs. Returns its path: `output`, or `report.html` in the first folder.

    Raises:
        NoRecord: when one of the folders holds no record of a run.
    """
    path = output or folders[0] / REPORT_FILE
    runs = [Run.load(folder) for folder in folders]
    is_measured = any(not run.is_ours for run in runs)
    sections = [
        Section(
            run=run,
            engines=_engines(run, f"engines{index}"),
            responses=as_html(read_responses(run.folder / RESPONSES_FILE)),
            estimate=None if is_measured else estimate(run),
        )
        for index, run in enumerate(runs)
    ]
    path.write_text(page(sections), encoding="utf-8")
    return path


def _engines(run: Run, prefix: str) -> str:
    """The run's engine charts, and its `timeline.json` beside its record."""
    steps = read_timeline(run.folder / SAMPLES_FILE)
    if steps:
        (run.folder / TIMELINE_FILE).write_text(json.dumps(trace(steps)))
    return engine_charts(steps, prefix)


def try_to_write(folder: Path) -> Path | None:
    """At the end of a run: what goes wrong is logged, and the run has ended as it did."""
    try:
        return write_report([folder])
    except Exception as error:  # a missing library, a full disk: no reason to call a training failed
        logger.warning("no report was written: %r; try python -m %s.report %s", error, _recipe(), folder)
        return None


def report_the_end(report_dir: str | Path | None) -> Path | None:
    """However the run ended, if it came to a step, and its record is on this machine."""
    if report_dir is None or not Path(report_dir, STEPS_FILE).exists():
        return None
    if (path := try_to_write(Path(report_dir))) is not None:
        log_phase(f"report: {path}")
    return path


def _recipe() -> str:
    return __name__.rpartition(".report")[0]
