"""What a rehearsal came to: one row a step, the mean beside the bound, and whether it can be believed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from omegaconf import DictConfig

from ...async_dapo.record.keys import IDLE_RATIO, OFF_POLICY, WASTE_RATIO
from ..plan.candidates import Bound, bound_of
from ..plan.scenario import Scenario
from ..quickstart.run_metrics import RunMetrics
from ..run_files import read_lines
from .options import RehearsalOptions, has_drafts

START_S = 60.0  # real, from the command to the first step, and from the last one to the end
SLOWEST_SHARE = 0.5  # of the bound's speed, that most systems reach
MAX_LATE_SHARE = 0.02  # of a step: how late an engine may notice that its batch changes
_PERCENTILE = 99.0

STALENESS = "training/off_policy/trajectory_staleness_worst/mean"
# Below the table in the terminal.
LEGEND = """\
idle: empty capacity, of what was used at the rollout's peak. tok/s/GPU: trained tokens.
of bound: the bound over the step's seconds; a single step passes 1 if its answers are short, or begun in steps before.
waste: thrown-away tokens over these plus trained ones. off-policy: share of trained tokens from older versions.
staleness: of a trajectory's oldest token, mean [versions]. bias: trained over natural mean length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """
    Attributes:
        engine_late_share: lateness that 99 of 100 changes of a batch stay below, over a step.
        trainer_late_share: what the trainer's own work took longer than modelled, over a step.
        largest_speedup: with which the run would have been valid, as far as this one tells.
    """

    engine_late_share: float
    trainer_late_share: float
    largest_speedup: float
    is_valid: bool

    def __str__(self) -> str:
        engines, trainer = 100 * self.engine_late_share, 100 * self.trainer_late_share
        shares = f"engines {engines:.2f} % of a step late, trainer {trainer:.2f} %"
        if self.is_valid:
            return f"Valid: {shares}."
        return f"INVALID: {shares}; this machine is too slow, or too busy: use rehearsal.speedup={self.advised:g}."

    @property
    def advised(self) -> float:
        """The largest valid speed-up, rounded down to two digits."""
        return float(f"{0.95 * self.largest_speedup:.2g}")


def judge(*, late_s: Sequence[float], trainer_late_s: float, step_s: float, speedup: float) -> Validity:
    """Real delays stay the same, so that each share is proportional to the speed-up.

    Args:
        late_s: of every change of a batch [virtual s].
        trainer_late_s: a step [virtual s].
        step_s: mean [virtual s].
    """
    engine = float(np.percentile(late_s, _PERCENTILE, method="lower")) / step_s if late_s else 0.0
    trainer = trainer_late_s / step_s
    excess = max(engine, trainer) / MAX_LATE_SHARE
    return Validity(
        engine_late_share=engine,
        trainer_late_share=trainer,
        largest_speedup=speedup / excess if excess else speedup,
        is_valid=excess <= 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run was, apart from what it wrote."""

    wall_s: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step, or the mean of several; times are virtual seconds.

    Attributes:
        step_s: from the end of the step before, or of the validation after it, to its own end.
        idle: empty capacity, of what was used at the rollout's peak [0-1].
        waste: thrown-away over thrown-away plus trained tokens [0-1].
        off_policy: share of trained tokens from older versions.
        staleness: of a trajectory's oldest token, mean over trajectories [versions].
        length_bias: mean trained over mean natural response length.
    """

    step: int
    step_s: float
    rollout_s: float
    idle: float
    tokens_per_s_per_gpu: float
    bound_share: float
    waste: float
    off_policy: float
    staleness: float
    length_bias: float


COLUMNS: dict[str, Callable[[Step], str]] = {
    "step s": lambda step: f"{step.step_s:.1f}",
    "rollout s": lambda step: f"{step.rollout_s:.1f}",
    "idle": lambda step: f"{step.idle:.2f}",
    "tok/s/GPU": lambda step: f"{step.tokens_per_s_per_gpu:.0f}",
    "of bound": lambda step: f"{step.bound_share:.2f}",
    "waste": lambda step: f"{step.waste:.2f}",
    "off-policy": lambda step: f"{step.off_policy:.2f}",
    "staleness": lambda step: f"{step.staleness:.2f}",
    "bias": lambda step: f"{step.length_bias:.2f}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    system: str
    setting: str  # model, accelerators, engines
    speedup: float
    steps: list[Step]
    warmup: int
    mean: Step
    bound: Bound
    num_gpus: int
    validity: Validity
    wall_s: float
    peak_memory_gb: float


def load_rehearsal(config: DictConfig, options: RehearsalOptions, run: Ended) -> Rehearsal:
    """From what the processes of a run have written."""
    scenario = options.scenario(config)
    bound = bound_of(scenario, filters=config.algorithm.filter_groups.enable)
    metrics = RunMetrics(file=options.folder / "metrics.jsonl")
    metrics.read_new()
    spans = {span["step"]: span for span in read_lines(options.spans_file)}
    steps = [
        _step(number, metrics.by_step[number], span, bound, scenario)
        for number, span in spans.items()
        if number in metrics.by_step
    ]
    measured = steps[options.warmup :] or steps[-1:]
    mean = _mean(measured)
    return Rehearsal(
        system=config.async_dapo.rollout_strategy,
        setting=_setting(scenario),
        speedup=options.speedup,
        steps=steps,
        warmup=options.warmup,
        mean=mean,
        bound=bound,
        num_gpus=scenario.num_gpus,
        validity=judge(
            late_s=[late_s for step in measured for late_s in spans[step.step]["engines_late_s"]],
            trainer_late_s=float(np.mean([spans[step.step]["trainer_late_s"] for step in measured])),
            step_s=mean.step_s,
            speedup=options.speedup,
        ),
        wall_s=run.wall_s,
        peak_memory_gb=run.peak_memory_bytes / 1e9,
    )


def _step(number: int, values: Mapping[str, float], span: Mapping[str, Any], bound: Bound, scenario: Scenario) -> Step:
    trained_tok = values["response_length/mean"] * scenario.train_batch_size * scenario.rollout_n
    return Step(
        step=number,
        step_s=span["step_s"],
        rollout_s=span["rollout_s"],
        idle=values[IDLE_RATIO],
        tokens_per_s_per_gpu=trained_tok / span["step_s"] / scenario.num_gpus,
        bound_share=bound.step_s / span["step_s"],
        waste=values[WASTE_RATIO],
        off_policy=values[OFF_POLICY],
        staleness=values[STALENESS],
        length_bias=values["response_length/mean"] / bound.trained_len_tok,
    )


def _mean(steps: Sequence[Step]) -> Step:
    """Of seconds and shares; rates are those of all steps together."""
    weights = np.array([step.step_s for step in steps])
    mean: dict[str, Any] = {name: float(np.mean([getattr(one, name) for one in steps])) for name in Step.__slots__}
    for name in ("bound_share", "tokens_per_s_per_gpu"):
        mean[name] = float(np.average([getattr(step, name) for step in steps], weights=weights))
    return Step(**mean | {"step": 0})


def _setting(scenario: Scenario) -> str:
    size, servers = scenario.tensor_parallel_size, scenario.num_servers
    engines = f"{servers} engine{'s' * (servers > 1)} of tensor parallel size {size}"
    return f"{scenario.model.name} on {scenario.num_gpus} x {scenario.accelerator.name}, {engines}"


def how_long(config: DictConfig, options: RehearsalOptions) -> str:
    """What a rehearsal is going to take of the user's time: said before its first step."""
    steps = config.trainer.total_training_steps
    filters, drafts = config.algorithm.filter_groups.enable, has_drafts(config)
    bound_s = bound_of(options.scenario(config), filters=filters, drafts=drafts).step_s
    least_s, most_s = (START_S + steps * bound_s / share / options.speedup for share in (1.0, SLOWEST_SHARE))
    return (
        f"This takes about {least_s / 60:.0f} to {most_s / 60:.0f} min: one to start and to end, and {steps} steps of "
        f"{bound_s:.0f} virtual s or more, of which {options.speedup:g} pass in a second."
    )


def table(rehearsal: Rehearsal) -> str:
    """For the terminal. What must not be believed says so first."""
    named = [*((str(step.step), step) for step in rehearsal.steps), ("mean", rehearsal.mean)]
    rows = [("step", *COLUMNS), *((name, *(cell(step) for cell in COLUMNS.values())) for name, step in named)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    bound = rehearsal.bound
    validity = str(rehearsal.validity)
    return "\n".join(
        [
            *([] if rehearsal.validity.is_valid else [validity, ""]),
            *lines,
            "",
            f"{rehearsal.system}: {rehearsal.setting}.",
            LEGEND,
            f"Virtual seconds at {rehearsal.speedup:g} to a real one; mean without the first {rehearsal.warmup} steps.",
            f"Bound: {bound.step_s:.1f} s a step (rollout {bound.rollout_s:.1f} s at {bound.tokens_per_s:.0f} tok/s).",
            *([validity] if rehearsal.validity.is_valid else []),
            f"{rehearsal.wall_s:.0f} real s, at most {rehearsal.peak_memory_gb:.1f} GB.",
        ]
    )
