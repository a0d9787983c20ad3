"""Hints when one of twelve metrics leaves the range that it should be in.

The report judges the last `EVERY_STEPS` steps and shows all that are out of range; the log judges each `EVERY_STEPS`
steps, in at most one line. `docs/metrics.md` has the same table, made from `RULES`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from ...async_dapo.core.staleness import HEALTHY_MEAN_STALENESS
from ...async_dapo.record import keys

EVERY_STEPS = 10
UNSTABLE_NATS = 0.01  # k3 of old tokens; below it Tinker's guide calls training stable
NOT_FINITE = f"{keys.NOT_FINITE_TOK} and {keys.SKIPPED_UPDATE} above 0"
VALIDATION_SHARE = f"share of {keys.VALIDATE_S}"  # in the time of steps and validations


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
        if not math.isfinite(value):
            return f"{self.key} is no finite number in a step: lower the learning rate, and look for {NOT_FINITE}"
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
        key=keys.NOT_FINITE_TOK,
        high=0,
        above="log-probs are no numbers, and verl leaves such updates out; lower the learning rate",
    ),
    Rule(
        key=keys.CALLS_FAILED_RATIO,
        high=keys.MANY_FAILED_CALLS,
        above="calls of tools raise or take too long, and their loops go on with the error; correct the tool or its "
        "service: the log names tool and error of each place once, in a line with 'is told so'",
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
        key=keys.FRESH_K3_KL,
        high=keys.GOOD_FRESH_K3,
        above="engines do not sample from the trainer's policy; leave out engine_kwargs.vllm.kv_cache_dtype and "
        "rollout.quantization, and compare rollout.dtype with what the trainer computes in",
    ),
    Rule(
        key=keys.K3_KL,
        high=UNSTABLE_NATS,
        above="old tokens differ too much from the policy, unless staleness_0/k3_kl is as high; lower "
        "async_dapo.max_staleness or async_dapo.max_partial_share, or the learning rate",
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
    Rule(
        key=VALIDATION_SHARE,
        high=0.1,
        above="engines wait for the longest answers of a validation; raise trainer.test_freq, or lower "
        "actor_rollout_ref.rollout.val_kwargs.n or the rows of data.val_files",
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
    if validations_s := sum(data.get(keys.VALIDATE_S, 0.0) for _, data in steps):
        steps_s = sum(data.get(keys.STEP_S, 0.0) for _, data in steps)
        values[VALIDATION_SHARE] = [validations_s / (validations_s + steps_s)]
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
