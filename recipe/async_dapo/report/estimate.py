"""How a run compares with verl's sync mode, where no run of that was given: by the planner's model.

verl is simulated with the run's own sizes, response lengths, valid share and measured speeds, and compared with the
steps that the run took.
"""

import logging
from dataclasses import dataclass

from ..config import ConfigError
from ..plan.candidates import verl_reference
from ..plan.from_run import RecordedRun
from ..plan.inputs import Inputs
from ..plan.sweep import sweep
from . import keys
from .run import Run

logger = logging.getLogger(__name__)

LEAST_STEPS = 3  # whose speeds and lengths are worth a model
NOTE = (
    "Estimated: steps of verl's sync mode are the planner's simulation, with this run's response lengths, valid share "
    "and speeds. To measure it, run verl beside it and name both folders."
)


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
