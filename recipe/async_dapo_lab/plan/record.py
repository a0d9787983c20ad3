"""What the metrics of a run say of its job: the record that a plan is fitted to.

Formats: verl's `file` logger and this recipe's `steps.jsonl` (a line a step, metrics under `data`), lines of wandb's
history (metrics at the top), a CSV of wandb's page (a column a metric), a folder of TensorBoard's events. What a record
lacks is None: the planner then assumes it, and says so.
"""

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ...async_dapo.config.values import ConfigError
from .lengths import FITTED, MEAN, PROMPT, TOKENS, LogNormalLengths, fit_lengths, read_jsonl
from .systems import VERL_COLOCATE_ASYNC, VERL_SYNC

_SECONDS = "timing_s/"
STEP, ROLLOUT, TRAIN, LOG_PROBS = (f"{_SECONDS}{name}" for name in ("step", "gen", "update_actor", "old_log_prob"))
# Of verl's modes, in groups; a step that has none does not log it.
FILTERED = "training/filter_groups/evicted_samples"
SURPLUS = "training/filter_groups/discarded_surplus_samples"
OUR_VALID = "async_dapo/filter/valid_share"
THROUGHPUT = "perf/throughput"  # tokens per second and GPU
STALEST = "training/off_policy/trajectory_staleness_worst/max"  # in versions; all of verl's modes log it
OURS = "async_dapo/"  # in those of this recipe
WARMUP = 0.1  # share of steps at the beginning that is left out: caches fill, and nothing is continued yet
FEWEST_STEPS = 4
_APART = 0.1  # relative difference of two numbers that should be one


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Means over the steps of a run; seconds are of one step.

    Attributes:
        rollout_s: None where only whole steps are known.
        train_s, log_prob_s: of the update, and of the pass of log-probs before it; 0 where they are not known.
        rest_s: what is left of a step without rollout, update and that pass.
        trajectories: trained in a step.
        filtered_groups: filtered in a step for lack of signal; None where no step says so.
        surplus_groups: valid groups that verl's sync mode throws away in a step.
        gpus: number of GPUs, as its tokens per second and GPU imply.
        doubts: sentences about figures that cannot be right.
    """

    path: str
    steps: Sequence[Mapping[str, float]]
    step_s: float
    rollout_s: float | None
    train_s: float
    log_prob_s: float
    rest_s: float | None
    prompt_len_tok: float | None
    trajectories: float | None
    filtered_groups: float | None
    surplus_groups: float
    valid_share: float | None
    gpus: float | None
    doubts: tuple[str, ...]

    @property
    def mode(self) -> str | None:
        """Which mode ran, where its metrics tell: verl's sync mode never trains on tokens of an older version."""
        if any(key.startswith(OURS) for step in self.steps for key in step):
            return OURS
        stalest = [step[STALEST] for step in self.steps if STALEST in step]
        if not stalest:
            return None
        return VERL_COLOCATE_ASYNC if any(stalest) else VERL_SYNC

    def lengths(self, correlation: float) -> LogNormalLengths | None:
        """A log-normal that fits its metrics, if it has them.

        Args:
            correlation: within a group, which no metric tells [0-1].
        """
        if not any(all(key in step for key in FITTED) for step in self.steps):
            return None
        return fit_lengths(self.steps, path=self.path, correlation=correlation)

    def halves(self) -> tuple["Record", "Record"]:
        """Its first and its second half, each as a record: how much a plan depends on which steps it saw."""
        middle = len(self.steps) // 2
        return _of(self.path, self.steps[:middle]), _of(self.path, self.steps[middle:])


def read_record(path: str) -> Record:
    """The trained steps of a record, without its first ones.

    Raises:
        ConfigError: for a file of another kind, and one with too few steps or without the seconds of a step.
    """
    steps = [step for step in _read(Path(path)) if step.get(STEP, 0.0) > 0]
    if len(steps) < FEWEST_STEPS:
        raise ConfigError(
            "record", path, f"has {len(steps)} steps with {STEP}; give a record of {FEWEST_STEPS} or more"
        )
    return _of(path, steps[math.ceil(WARMUP * len(steps)) :])


def record_of_means(path: str, **means: float) -> Record:
    """The record of a run whose mean metrics alone are known, as from a paper.

    Args:
        means: `step` [s], and other metrics by their last name, of verl's `timing_s/`.
    """
    return _of(path, [{f"{_SECONDS}{name}": value for name, value in means.items()}])


def _of(path: str, steps: Sequence[Mapping[str, float]]) -> Record:
    step_s, rollout_s = fmean(step[STEP] for step in steps), _mean(steps, ROLLOUT)
    train_s, log_prob_s = (_mean(steps, key) or 0.0 for key in (TRAIN, LOG_PROBS))
    return Record(
        path=path,
        steps=steps,
        step_s=step_s,
        rollout_s=rollout_s,
        train_s=train_s,
        log_prob_s=log_prob_s,
        rest_s=None if rollout_s is None else max(0.0, step_s - rollout_s - train_s - log_prob_s),
        prompt_len_tok=_mean(steps, PROMPT),
        trajectories=_trajectories(steps),
        filtered_groups=_per_step(steps, FILTERED),
        surplus_groups=_per_step(steps, SURPLUS) or 0.0,
        valid_share=_mean(steps, OUR_VALID),
        gpus=_gpus(steps),
        doubts=tuple(_doubts(steps)),
    )


def _trajectories(steps: Sequence[Mapping[str, float]]) -> float | None:
    counts = _counts(steps)
    return fmean(counts) if counts else None


def _counts(steps: Sequence[Mapping[str, float]]) -> list[float]:
    return [step[TOKENS] / (step[MEAN] + step[PROMPT]) for step in steps if _has(step, TOKENS, MEAN, PROMPT)]


def _gpus(steps: Sequence[Mapping[str, float]]) -> float | None:
    counts = [step[TOKENS] / (step[THROUGHPUT] * step[STEP]) for step in steps if _has(step, TOKENS, THROUGHPUT)]
    return fmean(counts) if counts else None


def _has(step: Mapping[str, float], *keys: str) -> bool:
    return all(step.get(key, 0.0) > 0 for key in keys)


def _doubts(steps: Sequence[Mapping[str, float]]) -> list[str]:
    """What no run can have logged."""
    doubts = []
    parts = [(step[STEP], sum(step.get(key, 0.0) for key in (ROLLOUT, TRAIN, LOG_PROBS))) for step in steps]
    if over := sum(whole < (1 - _APART) * some for whole, some in parts):
        doubts.append(f"in {over} of {len(steps)} steps rollout, log-probs and update take longer than the step")
    counts = _counts(steps)
    if counts and max(counts) > (1 + _APART) * min(counts):
        doubts.append(
            f"{TOKENS} over the mean length is {min(counts):.0f} to {max(counts):.0f} trajectories a step, where each "
            "step trains on as many"
        )
    if len(counts) > 1 and len({step[TOKENS] for step in steps if TOKENS in step}) == 1:
        doubts.append(f"{TOKENS} is the same in every step, although lengths differ")
    return doubts


def _mean(steps: Sequence[Mapping[str, float]], key: str) -> float | None:
    """Of the steps that have it."""
    values = [step[key] for step in steps if key in step]
    return fmean(values) if values else None


def _per_step(steps: Sequence[Mapping[str, float]], key: str) -> float | None:
    """Mean of a count that steps with none leave out; None where no step has it."""
    return fmean(step.get(key, 0.0) for step in steps) if any(key in step for step in steps) else None


def _read(path: Path) -> list[dict[str, float]]:
    """Metrics by step, in the order of the steps."""
    if path.is_dir():
        return _events(path)
    if path.suffix == ".csv":
        return _table(path)
    values = read_jsonl(path, key="record", wanted="a JSONL or CSV file, or a folder of TensorBoard's events")
    rows = [row.get("data", row) for row in values if isinstance(row, dict)]
    return [_numbers(row) for row in rows if isinstance(row, Mapping)]


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for key, value in row.items():
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            continue
        if math.isfinite(number):
            found[str(key)] = number
    return found


def _table(path: Path) -> list[dict[str, float]]:
    """A column a metric. wandb's page names it `RUN - METRIC`, and adds columns of the least and the most."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            names = {key: key.rpartition(" - ")[2] for key in reader.fieldnames or ()}
            rows = [{names[key]: value for key, value in row.items() if key in names} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError("record", str(path), f"cannot be read as CSV ({error})") from error
    if twice := [name for name, count in Counter(names.values()).items() if count > 1]:
        raise ConfigError("record", str(path), f"has {twice[0]} of several runs; give the columns of one run")
    return [_numbers(row) for row in rows]


def _events(folder: Path) -> list[dict[str, float]]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise ConfigError("record", str(folder), "is a folder: reading TensorBoard's events needs `tensorboard`") from (
            error
        )
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    steps: dict[int, dict[str, float]] = defaultdict(dict)
    for key in accumulator.Tags()["scalars"]:
        for event in accumulator.Scalars(key):
            steps[event.step][key] = float(event.value)
    if not steps:
        raise ConfigError("record", str(folder), "has no scalars of TensorBoard; give the folder of the event files")
    return [_numbers(steps[step]) for step in sorted(steps)]
