"""What a step writes to console and log, whatever trains, this recipe or verl alone: one line, and hints when one of
ten metrics leaves the range that it should be in.

The report judges the last `EVERY_STEPS` steps and shows all that are out of range; the log judges each `EVERY_STEPS`
steps, in at most one line. `docs/metrics.md` has the same table, made from `RULES`.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

from ..core.staleness import HEALTHY_MEAN_STALENESS
from . import keys

Values = Mapping[str, float]

EVERY_STEPS = 10


def step_line(step: int, values: Values, *, speedup: float = 1.0, pace: "Pace | None" = None) -> str:
    """For example `step 12/300 | 41.2 s (rollout 28, train 11) | B 512 | ... | failed 0 | 3 h 17 min left`.

    Args:
        values: all metrics that were logged for the step; parts whose metrics are missing are left out.
        speedup: seconds to show for a measured one.
        pace: of the run, if it is known how many steps there are.
    """
    number, left = (f"{step}", []) if pace is None else (f"{step}/{pace.total_steps}", pace.left(step, values))
    return " | ".join((f"step {number}", *_parts(values, speedup), *left))


class Pace:
    """When a run will end, by the mean of its newest steps and of what comes between them.

    Args:
        total_steps: of the run, also if it was resumed.
    """

    NEWEST = 10

    def __init__(self, total_steps: int) -> None:
        self.total_steps = total_steps
        self._newest_s: deque[float] = deque(maxlen=self.NEWEST)

    def left(self, step: int, values: Values) -> list[str]:
        """In words; nothing before the first step and after the last one."""
        if keys.STEP_S in values:
            self._newest_s.append(values[keys.STEP_S] + values.get(keys.VALIDATE_S, 0.0))
        steps = self.total_steps - step
        return [f"{duration(steps * fmean(self._newest_s))} left"] if self._newest_s and steps > 0 else []


def duration(value_s: float) -> str:
    """To the second, the minute or ten minutes, as it is long."""
    if value_s < 99.5:
        return f"{value_s:.0f} s"
    minutes = round(value_s / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60 // 10 * 10} min"


def accuracy_of(values: Values) -> float | None:
    """Of a validation: the mean over its data sources, of the accuracy or else the reward; None without one."""
    found = _accuracies(values)
    return fmean(found.values()) if found else None


def accuracy_name(values: Values) -> str:
    """Which of the validation's metrics that is, for example `math/acc/mean@4`; empty without one."""
    names = [key.removeprefix(keys.ACCURACY_PREFIX) for key in _accuracies(values)]
    return names[0] if len(names) == 1 else f"mean of {', '.join(names)}" if names else ""


def _accuracies(values: Values) -> dict[str, float]:
    means = {key: value for key, value in values.items() if key.startswith(keys.ACCURACY_PREFIX) and "/mean@" in key}
    return {key: value for key, value in means.items() if "/acc/" in key} or means


def seconds(value: float) -> str:
    """Three digits, and no more than whole seconds."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def _parts(values: Values, speedup: float) -> Iterator[str]:
    if keys.STEP_S in values:
        phases = _phases(values, speedup)
        yield f"{seconds(speedup * values[keys.STEP_S])} s" + (f" ({phases})" if phases else "")
    for key, text in (
        (keys.TRAINED_GROUPS, lambda count: f"B {count:.0f}"),
        (keys.REJECTED_RATIO, lambda ratio: f"filtered {percent(ratio)}"),
        (keys.INTERRUPTED, lambda count: f"interrupted {count:.0f}"),
        (keys.IDLE_RATIO, lambda ratio: f"idle {percent(ratio)}"),
        (keys.DRAFT_TOK_PER_STEP, lambda tok: f"drafts {tok:.2f} tok/step"),
        (keys.OFF_POLICY, lambda ratio: f"off-policy {percent(ratio)}"),
        (keys.FAILED_GROUPS, lambda count: f"failed {count:.0f}"),
        (keys.REWARD, lambda reward: f"reward {reward:.3g}"),
    ):
        if key in values:
            yield text(values[key])
    if (accuracy := accuracy_of(values)) is not None:
        yield f"accuracy {accuracy:.3g} ({accuracy_name(values)})"
    if values.get(keys.VALIDATION_FAILED):
        yield f"failed in validation {values[keys.VALIDATION_FAILED]:.0f}"


def _phases(values: Values, speedup: float) -> str:
    phases = {
        "rollout": (keys.ROLLOUT_S,),
        "train": (*keys.LOG_PROB_PARTS, *keys.TRAIN_PARTS),
        "save": (keys.SAVE_S,),
    }
    timed = {name: [values[key] for key in parts if key in values] for name, parts in phases.items()}
    return ", ".join(f"{name} {seconds(speedup * sum(times_s))}" for name, times_s in timed.items() if times_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A metric, its healthy range (ends included; None = no end on that side), and what leaving it means."""

    key: str
    low: float | None = None
    high: float | None = None
    below: str = ""  # what it means, then what to turn
    above: str = ""
    settles_after: int = 0  # the first steps, which say nothing [count]

    @property
    def healthy(self) -> str:
        if self.low is None:
            return f"{self.high:g}" if self.high == 0 else f"up to {self.high:g}"
        return f"from {self.low:g}" if self.high is None else f"{self.low:g} to {self.high:g}"

    def hint(self, value: float) -> str | None:
        """What to do about a value out of range; None for a healthy one."""
        if self.low is not None and value < self.low:
            return f"{self.key} is {value:.3g} (healthy: {self.healthy}): {self.below}"
        if self.high is not None and value > self.high:
            return f"{self.key} is {value:.3g} (healthy: {self.healthy}): {self.above}"
        return None


RULES = (
    Rule(
        key=keys.FAILED_GROUPS,
        high=0,
        above="groups fail; the log has the traceback of each place once: correct the reward function, tool or loop",
    ),
    Rule(
        key=keys.CALLS_FAILED_RATIO,
        high=0.2,
        above="calls of tools raise or take too long, and their loops go on with the error; correct the tool or its "
        "service: the log has each place once",
    ),
    Rule(
        key=keys.ADVANTAGE_MAX,
        low=1e-6,
        below="the rewards of each group are all the same, so nothing is learned; correct the reward function, or take "
        "other prompts, and leave algorithm.filter_groups.enable at True",
    ),
    Rule(
        key=keys.LENGTH_RATIO,
        low=0.97,
        high=1.03,
        below="training prefers short answers; set async_dapo.stop_rule=fifo (with discard never first_completed)",
        above="training prefers long answers; set async_dapo.stop_rule=fifo",
        settles_after=10,  # until then long answers are on their way
    ),
    Rule(
        key=keys.ESS_RATIO,
        low=0.8,
        below="old tokens differ too much from the policy; lower async_dapo.max_staleness or "
        "async_dapo.max_partial_share, or the learning rate, or take async_dapo.importance_sampling=bypass",
    ),
    Rule(
        key=keys.FRESH_K3_KL,
        high=0.01,
        above="engines do not sample from the trainer's policy; leave out engine_kwargs.vllm.kv_cache_dtype and "
        "rollout.quantization, and compare rollout.dtype with what the trainer computes in",
    ),
    Rule(
        key=keys.WASTE_RATIO,
        high=0.1,
        above="generated tokens are thrown away; use async_dapo.rollout_strategy=partial",
    ),
    Rule(
        key=keys.IDLE_RATIO,
        high=0.5,
        above="engines wait for work during the round; leave async_dapo.over_sampling_batch_size and "
        "async_dapo.rollout_pool_size at auto, or set them to what the planner recommends",
    ),
    Rule(
        key=keys.REJECTED_RATIO,
        high=0.7,
        above="most groups are all right or all wrong; use harder or easier prompts, and check that "
        "algorithm.filter_groups.metric is the correctness",
    ),
    Rule(
        key=keys.STALENESS_MEAN,
        high=HEALTHY_MEAN_STALENESS,
        above="trajectories are carried over many steps; set async_dapo.max_partial_share, lower "
        "async_dapo.max_staleness, or raise data.train_batch_size over what is in flight",
    ),
)


def hints(values: Mapping[str, float]) -> list[str]:
    """Of the metrics at hand, in the order of `RULES`: what matters most comes first."""
    found = (rule.hint(values[rule.key]) for rule in RULES if rule.key in values)
    return [hint for hint in found if hint is not None]


def judged(steps: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Means that the rules judge, of some steps and their metrics."""
    steps = list(steps)
    values = {
        rule.key: [data[rule.key] for step, data in steps if step > rule.settles_after and rule.key in data]
        for rule in RULES
    }
    return {key: fmean(found) for key, found in values.items() if found}


class Hints:
    """What the log says of the last `EVERY_STEPS` steps, at most one line: a single step out of range is none."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, Mapping[str, float]]] = []

    def of_step(self, step: int, values: Mapping[str, float]) -> str | None:
        """The most urgent hint of the means since the last one was due; None in between, and when all is well."""
        self._steps.append((step, values))
        if len(self._steps) < EVERY_STEPS:
            return None
        found = hints(judged(self._steps))
        self._steps = []
        return f"over {EVERY_STEPS} steps, {found[0]}" if found else None
