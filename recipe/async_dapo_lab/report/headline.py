"""A run in one sentence, and against verl's sync mode: a measured run, or the planner's model of one with the run's own
sizes, response lengths, valid share and measured speeds.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from ...async_dapo.option_values import ConfigError
from ...async_dapo.record import keys
from ...async_dapo.record.console import percent, seconds
from ..plan.candidates import verl_reference
from ..plan.from_run import RecordedRun
from ..plan.inputs import Inputs
from ..plan.sweep import sweep
from .run import Run

logger = logging.getLogger(__name__)

LEAST_STEPS = 3  # whose speeds and lengths are worth a model
NOTE = (
    "Estimated: steps of verl's sync mode are the planner's simulation, with this run's response lengths, valid share "
    "and speeds. To measure it, run verl beside it and name both folders."
)

NOTHING = 0.0005  # shares below it read as none


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """
    Attributes:
        speed_up: seconds of verl's mean step, over those of the run's.
        gpu_hours: of the run's steps, start-up and validation left out.
    """

    speed_up: float
    gpu_hours: float

    def __str__(self) -> str:
        said = f"estimated {self.speed_up:.2f}x of verl sync"
        verls = self.speed_up * self.gpu_hours
        saved = verls - self.gpu_hours
        return f"{said}, {_hours(saved)} of {_hours(verls)} GPU hours saved" if saved > 0 else said


def estimate(run: Run) -> Estimate | None:
    """None for a run that is too short, or whose folder does not say enough for a model."""
    step_s = run.mean(keys.STEP_S)
    if step_s is None or len(run.steps) < LEAST_STEPS:
        return None
    try:
        inputs = Inputs.load(None, {}, recorded=RecordedRun.read(str(run.folder)).inputs)
        scenario = inputs.scenario()
        [row] = sweep(scenario, [verl_reference(scenario)])
    except (ConfigError, KeyError) as error:
        logger.debug("no estimate for %s: %r", run.folder, error)
        return None
    gpu_hours = len(run.steps) * step_s / 3600 * (run.description.gpus or 1)
    return Estimate(speed_up=row.mean.step_s / step_s, gpu_hours=gpu_hours)


def _hours(hours: float) -> str:
    return f"{hours:.0f}" if hours >= 10 else f"{hours:.2g}"


def headline(run: Run, baseline: Run | None = None, estimate: Estimate | None = None) -> str:
    """For example `step 41.2 s; engines idle 14 %; nothing thrown away; ...`.

    Args:
        baseline: a run of verl alone, to compare with.
        estimate: where there is none.
    """
    return "; ".join(_parts(run, baseline, estimate))


def speed_up(run: Run, baseline: Run) -> float | None:
    """How many steps of `run` pass in one of `baseline`, by their medians."""
    ours_s, theirs_s = run.median(keys.STEP_S), baseline.median(keys.STEP_S)
    return theirs_s / ours_s if ours_s and theirs_s else None


def _parts(run: Run, baseline: Run | None, estimate: Estimate | None) -> Iterator[str]:
    step_s = run.median(keys.STEP_S)
    yield (
        "no step was trained"
        if step_s is None
        else f"step {seconds(step_s)} s (median of {len(run.steady(keys.STEP_S))})"
    )
    if (idle := run.idle_ratio()) is not None:
        yield f"engines idle {percent(idle)} of the round"
    if (drafts := run.mean(keys.DRAFT_TOK_PER_STEP)) is not None:
        yield f"drafts: {drafts:.2f} tokens of a response in a step of an engine"
    if (waste := run.waste_ratio()) is not None:
        yield "nothing thrown away" if waste < NOTHING else f"{percent(waste)} of tokens thrown away"
    if (off_policy := run.mean(keys.OFF_POLICY)) is not None:
        stale = run.mean(keys.STALENESS_MEAN) or 0.0
        yield (
            "all tokens of the newest policy"
            if off_policy < NOTHING
            else f"{percent(off_policy)} of tokens from older policies (mean staleness {stale:.2g})"
        )
    if failed := int(run.total(keys.FAILED_GROUPS)):
        yield f"{failed} groups failed"
    if len(accuracy := run.accuracy()) > 1:
        yield f"accuracy {accuracy[0][1]:.2f} to {accuracy[-1][1]:.2f} ({run.accuracy_name()})"
    if baseline is not None and (faster := speed_up(run, baseline)) is not None:
        yield f"measured {faster:.2f}x of {baseline.name}"
    elif estimate is not None:
        yield str(estimate)
