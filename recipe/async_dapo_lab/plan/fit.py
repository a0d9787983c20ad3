"""A plan that starts from a run: the engines' speed is fitted so that the recorded mode's step comes out as recorded.

One number is fitted, the factor on all seconds of an engine. What else the planner needs is in the record, given, or
assumed; each assumption is named, as each may decide the answer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...async_dapo.config.values import ConfigError, RolloutStrategy, check_choice
from .candidates import Candidate, baseline, recipe_candidates
from .inputs import Inputs
from .lengths import MEAN
from .record import OURS, THROUGHPUT, Record
from .scenario import Scenario
from .sweep import Row, simulate
from .systems import VERL, VERL_COLOCATE_ASYNC, VERL_SYNC, verl_colocate_async, verl_sync

MODES = ("sync", "colocate_async", "partial")
CLOSE = (
    0.01  # largest relative difference between the planned and the recorded rollout, where the trainer does not poll
)
MOST_TRIES = 12
GPUS_APART = 0.1  # largest relative difference between the GPUs that were recorded and those that are planned
FASTEST, SLOWEST = 0.02, 50.0  # range of the fitted factor; outside of it, something else than the speed is wrong
# Inputs that decide an answer, and what to say where neither the record nor the user has them.
DECISIVE = {
    "engine": "whose speed; --record or --calibrate gives you your own",
    "valid_share": "share of groups that pass the filter; 1 without a filter",
    "length_sigma": "spread of the lengths",
    "length_median_tok": "median of the lengths",
    "length_correlation": "how alike the lengths within a group are",
    "gpu_memory_utilization": "of the engines",
    "updates": "of a step; with one no pass of log-probs is needed",
    "max_num_seqs": "of an engine",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A scenario that gives the recorded step.

    Attributes:
        planned_step_s, planned_rollout_s: of the recorded mode, with the fitted engines.
        taken: input -> its value, from the record.
        assumed: input -> its value, from neither the record nor the user.
    """

    record: Record
    mode: str
    inputs: Inputs
    scenario: Scenario
    planned_step_s: float
    planned_rollout_s: float
    taken: Mapping[str, Any]
    assumed: Mapping[str, Any]

    @property
    def doubts(self) -> list[str]:
        """What cannot be, in the record or beside the inputs."""
        gpus, planned = self.record.gpus, self.scenario.num_gpus
        if gpus is None or abs(gpus - planned) <= GPUS_APART * planned:
            return list(self.record.doubts)
        return [*self.record.doubts, f"{THROUGHPUT} speaks of {gpus:.0f} GPUs, the plan has {planned}"]

    @property
    def _engine(self) -> str:
        """Whose seconds the factor multiplies."""
        calibrated = self.inputs.calibrate
        return f"engine={self.inputs.engine}" if calibrated is None else f"calibrate={calibrated}"

    def __str__(self) -> str:
        record, doubts = self.record, "".join(f"\n  cannot be: {doubt}" for doubt in self.doubts)
        rollout = "" if record.rollout_s is None else f"{record.rollout_s:.1f} s recorded, "
        return (
            f"record: {record.path}, {len(record.steps)} steps of {self.mode}\n"
            f"  step {record.step_s:.1f} s recorded, {self.planned_step_s:.1f} s planned; of it rollout {rollout}"
            f"{self.planned_rollout_s:.1f} s planned\n"
            f"  engines take {self.inputs.engine_factor:.2f} times the seconds of {self._engine}\n"
            f"  from the record: {_listed(self.taken)}{doubts}"
        )


def assumptions(given: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    """What decides an answer, and stands at the planner's default."""
    described = Inputs.described()
    told = {"length_median_tok", "length_sigma"} if given.get("lengths") else set()
    told |= {"engine"} if given.get("calibrate") else set()
    names = DECISIVE.keys() - told - given.keys() - taken.keys()
    return {name: described[name][0] for name in DECISIVE if name in names}


def assumed_in_words(assumed: Mapping[str, Any]) -> str:
    return "\n".join(f"assumed: {name}={_short(value)} ({DECISIVE[name]})" for name, value in assumed.items())


def fit(record: Record, given: Mapping[str, Any], mode: str | None) -> Fit:
    """
    Args:
        given: inputs of the user, which win over the record.
        mode: the recorded one, of MODES; None = the record tells which it is.

    Raises:
        ConfigError: where the mode is not known, the batch is not the recorded one, the speed of engines is given, or
            none explains the recorded rollout.
    """
    name = _mode(record, mode)
    if "engine_factor" in given:
        raise ConfigError("engine_factor", given["engine_factor"], "is what a record fits; leave one of the two out")
    taken = {key: value for key, value in _taken(record, given).items() if key not in given}
    assumed = assumptions(given, {**taken, "engine": "fitted"})
    inputs = Inputs.load({**taken, **given})
    _check_batch(record, inputs)
    factor, rollout_s, step_s = fit_engines(inputs, record, partial(recorded_candidate, name))
    inputs = replace(inputs, engine_factor=factor)
    return Fit(
        record=record,
        mode=name,
        inputs=inputs,
        scenario=inputs.scenario(),
        planned_step_s=step_s,
        planned_rollout_s=rollout_s,
        taken=taken,
        assumed=assumed,
    )


def recorded_candidate(name: str, scenario: Scenario) -> Candidate:
    """The mode that was recorded, as a row of the planner."""
    systems = {VERL_SYNC: verl_sync, VERL_COLOCATE_ASYNC: verl_colocate_async}
    if name in systems:
        return baseline(systems[name](groups=scenario.train_batch_size))
    return next(row for row in recipe_candidates(scenario, strategies=[RolloutStrategy.PARTIAL]) if row.is_default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What this recipe's default is planned to take of a recorded run's step.

    Attributes:
        ratio: planned step of the default over that of the recorded mode, for equally many trained tokens.
        of_halves: the same, with engines and lengths fitted to each half of the record alone; without a half that
            cannot be.
    """

    fit: Fit
    default_step_s: float
    ratio: float
    of_halves: tuple[float, ...]

    def __str__(self) -> str:
        ratios, missing = (self.ratio, *self.of_halves), 2 - len(self.of_halves)
        unfitted = f"; {missing} of them cannot be fitted alone" if missing else ""
        return (
            f"From the record: this recipe's default takes {self.ratio:.2f} of the recorded step ({min(ratios):.2f} to "
            f"{max(ratios):.2f}, with the engines fitted to all of it and to each half{unfitted}): "
            f"{self.default_step_s:.0f} s in place of {self.fit.record.step_s:.0f} s"
        )

    def as_dict(self) -> dict[str, Any]:
        record = self.fit.record
        return {
            "record": record.path,
            "recorded_mode": self.fit.mode,
            "recorded_step_s": record.step_s,
            "planned_step_s": self.fit.planned_step_s,
            "recorded_rollout_s": record.rollout_s,
            "planned_rollout_s": self.fit.planned_rollout_s,
            "taken": dict(self.fit.taken),
            "doubts": self.fit.doubts,
            "ratio": self.ratio,
            "ratio_of_halves": list(self.of_halves),
        }


def promise(fitted: Fit, given: Mapping[str, Any], rows: Sequence[Row]) -> Promise:
    """
    Args:
        given: inputs of the user.
        rows: that were simulated with the fitted scenario, this recipe's default among them.
    """
    default = next(row for row in rows if row.candidate.is_default)
    recorded = next((row for row in rows if row.candidate.system.name == fitted.mode), default)
    ratio = recorded.speed_up / default.speed_up
    mode = fitted.mode.removeprefix(VERL)
    of_halves = []
    for half in fitted.record.halves():
        with suppress(ConfigError):  # what was planned from all of it is worth printing all the same
            of_halves.append(_ratio(fit(half, given, mode), default.candidate))
    return Promise(fit=fitted, default_step_s=ratio * fitted.record.step_s, ratio=ratio, of_halves=tuple(of_halves))


def _ratio(fitted: Fit, default: Candidate) -> float:
    """A trained token's seconds of the default over those of the recorded mode."""
    scenario = fitted.scenario
    own, recorded = (
        simulate(scenario, one, steps=fitted.inputs.steps, warmup=fitted.inputs.warmup)[0]
        for one in (default, recorded_candidate(fitted.mode, scenario))
    )
    return recorded.tokens_per_s_per_gpu / own.tokens_per_s_per_gpu


def _mode(record: Record, mode: str | None) -> str:
    if mode is not None:
        check_choice("recorded_mode", mode, MODES)
        return mode if mode == "partial" else f"{VERL}{mode}"
    if record.mode is None:
        raise ConfigError("recorded_mode", None, f"the record does not tell its mode; give one of {', '.join(MODES)}")
    return "partial" if record.mode == OURS else record.mode


def _taken(record: Record, given: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs that the record tells."""
    said = Inputs.load(dict(given))
    taken: dict[str, Any] = {}
    if record.rest_s is not None and record.train_s:
        taken |= {"update_s": record.rest_s, "training_s": record.train_s, "log_prob_s": record.log_prob_s}
    if record.prompt_len_tok is not None:
        taken["prompt_len_tok"] = max(1, round(record.prompt_len_tok))
    if said.lengths is None and not {"length_median_tok", "length_sigma"} <= given.keys():
        taken |= _lengths(record, said, fits_sigma="length_sigma" not in given)
    if record.valid_share is not None:
        taken["valid_share"] = record.valid_share
    elif record.filtered_groups is not None:
        valid = said.train_batch_size + record.surplus_groups
        taken["valid_share"] = valid / (valid + record.filtered_groups)
    elif record.mode != OURS:
        taken["valid_share"] = 1.0  # verl logs what it filters, and filters nothing by default
    return taken


def _lengths(record: Record, said: Inputs, *, fits_sigma: bool) -> dict[str, float]:
    fitted = record.lengths(said.length_correlation) if fits_sigma else None
    if fitted is not None:
        return {"length_median_tok": fitted.median_tok, "length_sigma": fitted.sigma}
    means = [step[MEAN] for step in record.steps if MEAN in step]
    return {"length_median_tok": sum(means) / len(means) / math.exp(said.length_sigma**2 / 2)} if means else {}


def _check_batch(record: Record, inputs: Inputs) -> None:
    """B and n are not in a record; their product is, where it has tokens and lengths."""
    planned = inputs.train_batch_size * inputs.rollout_n
    if record.trajectories is not None and abs(planned - record.trajectories) > 0.2 * planned:
        raise ConfigError(
            "train_batch_size",
            inputs.train_batch_size,
            f"times rollout_n={inputs.rollout_n} is {planned} trajectories a step, the record has "
            f"{record.trajectories:.0f}; give those of the recorded job",
        )


def fit_engines(
    inputs: Inputs, record: Record, candidate_in: Callable[[Scenario], Candidate]
) -> tuple[float, float, float]:
    """Factor of the engines' seconds, and rollout and step of the recorded system with it [s]: a secant of logarithms,
    as a rollout grows nearly in proportion to its engines' seconds.

    Args:
        candidate_in: the recorded system.

    Raises:
        ConfigError: where no speed of engines explains the recorded rollout.
    """

    def planned(factor: float) -> tuple[float, float, float]:
        scenario = replace(inputs, engine_factor=factor).scenario()
        mean, _ = simulate(scenario, candidate_in(scenario), steps=inputs.steps, warmup=inputs.warmup)
        beside_s = mean.step_s - mean.rollout_s
        wanted_s = record.step_s - beside_s if record.rollout_s is None else record.rollout_s
        return mean.rollout_s, mean.step_s, max(wanted_s, 0.01 * record.step_s)

    factor, slope, fastest, slowest = inputs.engine_factor, 1.0, FASTEST, SLOWEST
    nearest = math.inf, factor, 0.0, 0.0
    before: tuple[float, float] | None = None
    for _ in range(MOST_TRIES):
        rollout_s, step_s, wanted_s = planned(factor)
        nearest = min(nearest, (abs(rollout_s - wanted_s), factor, rollout_s, step_s))
        if abs(rollout_s / wanted_s - 1) <= CLOSE:
            return nearest[1:]
        if before is not None:
            moved = math.log(rollout_s / before[1]) / math.log(factor / before[0])
            slope = min(2.0, max(0.3, moved))
        before = factor, rollout_s
        fastest, slowest = (factor, slowest) if rollout_s < wanted_s else (fastest, factor)
        tried = factor * (wanted_s / rollout_s) ** (1 / slope)
        if not FASTEST <= tried <= SLOWEST:
            break
        factor = tried if fastest < tried < slowest else math.sqrt(fastest * slowest)
    if nearest[0] <= candidate_in(inputs.scenario()).system.habits.poll_s / 2:
        return nearest[1:]  # a rollout ends at a look of the trainer's: it grows in jumps
    raise ConfigError(
        "record",
        record.path,
        f"no speed of the engines explains a rollout of {wanted_s:.0f} s: at {nearest[1]:.2f} times the constants' "
        f"seconds it takes {nearest[2]:.0f} s; check servers, tensor_parallel_size, lengths, training_s and "
        "recorded_mode",
    )


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
