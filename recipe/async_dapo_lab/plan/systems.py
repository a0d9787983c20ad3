"""What is simulated: this recipe under some options, and other systems as settings of the same machinery."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from ...async_dapo.config.extensions import declared
from ...async_dapo.config.options import CONFIG_FOLDER, CONFIG_NAME, AsyncDAPOConfig
from ...async_dapo.config.values import ImportanceSampling
from ...async_dapo.core.staleness import VersionTag
from .scenario import Scenario

DEFAULTS_FILE = CONFIG_FOLDER / f"{CONFIG_NAME}.yaml"
UNBOUNDED = 1_000_000  # requests or groups
VERL = "verl "  # what the names of its own modes begin with
VERL_SYNC = f"{VERL}sync"
VERL_COLOCATE_ASYNC = f"{VERL}colocate_async"


class Refill(StrEnum):
    """When a system draws further prompts in a step."""

    ON_DEMAND = "on_demand"  # this recipe: as soon as the available ones cannot reach the target
    PER_FILTERED = "per_filtered"  # verl 0.9: some for every group that was filtered
    NEXT_BATCH = "next_batch"  # 2025's dynamic sampling: another batch when the last has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Where a system behaves otherwise than this recipe, around the same scheduler."""

    poll_s: float = 0.0  # between two looks of the trainer at what has finished; 0 = it waits on events
    resume_delay_s: float = 0.0  # from a stop until what it interrupted is sent again, if engines are open
    refill: Refill = Refill.ON_DEMAND
    refill_factor: int = 1  # prompts for each filtered one
    max_inflight_batches: int | None = None  # of B groups, for refills; None = no limit
    drops_surplus: bool = False  # valid groups beyond B are thrown away
    drops_interrupted: bool = False  # prompts that the stop cancelled are lost
    scores_buffer: bool = False  # log-probs of interrupted trajectories are recomputed by the trainer in every step
    always_scores: bool = (
        False  # log-probs of the batch are computed before its update, also where that says nothing new
    )
    balances_steps: bool = False  # over training ranks, not each update of a step: what is built on verl's trainers


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A name for the table, overrides of this recipe's yaml (full key -> value), and habits."""

    name: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    habits: Habits = field(default_factory=Habits)

    def with_overrides(self, overrides: Mapping[str, Any]) -> "System":
        return replace(self, overrides={**self.overrides, **overrides})

    def options(self, scenario: Scenario) -> AsyncDAPOConfig:
        """The recipe's own options in a scenario, parsed and validated by its own code.

        Raises:
            ConfigError: for an override that the recipe would refuse.
        """
        config = _defaults().copy()
        base = {
            "data.train_batch_size": scenario.train_batch_size,
            "data.max_prompt_length": scenario.prompt_len_tok,
            "data.max_response_length": scenario.max_response_length,
            "actor_rollout_ref.rollout.n": scenario.rollout_n,
            "async_dapo.report_dir": None,  # of the yaml alone, it would name a node that only verl's has
        }
        for key, value in (base | dict(self.overrides)).items():
            OmegaConf.update(config, key, value, force_add=True)
        return AsyncDAPOConfig.from_hydra(config)


@cache
def _defaults() -> DictConfig:
    config = OmegaConf.load(DEFAULTS_FILE)
    assert isinstance(config, DictConfig)
    return config


def recipe(name: str, **async_dapo: Any) -> System:
    """This recipe with some options of the `async_dapo` node."""
    return System(name=name, overrides={f"async_dapo.{key}": value for key, value in async_dapo.items()})


def verl_sync(*, groups: int, poll_s: float = 2.0) -> System:
    """verl 0.9's V1 trainer, mode sync: drains all in flight, draws two prompts for each filtered one."""
    return System(
        name=VERL_SYNC,
        overrides=_everything_at_once(groups, stop_rule="drain", rollout_strategy="discard"),
        habits=Habits(
            poll_s=poll_s,
            refill=Refill.PER_FILTERED,
            refill_factor=2,
            max_inflight_batches=1,
            drops_surplus=True,
            always_scores=True,
            balances_steps=True,
        ),
    )


def verl_colocate_async(*, groups: int) -> System:
    """verl 0.9's V1 trainer, mode colocate_async: stops at B groups, resumes after 1 s, submits without bound.

    Every step submits B prompts on top of the batch in flight (`trainer.v1.colocate_async.num_warmup_batches=1`).
    """
    return System(
        name=VERL_COLOCATE_ASYNC,
        overrides=_everything_at_once(2 * groups, stop_rule="first_completed", rollout_strategy="partial"),
        habits=Habits(
            poll_s=2.0, resume_delay_s=1.0, refill=Refill.PER_FILTERED, always_scores=True, balances_steps=True
        ),
    )


def async_dapo_2025(*, over_sampling: int, max_concurrent_prompts: int = 16) -> System:
    """The 2025 recipe: B valid groups in order of completion, the rest thrown away and forgotten; polls."""
    options = {
        "stop_rule": "first_completed",
        "rollout_strategy": "discard",
        "over_sampling_batch_size": over_sampling,
        "rollout_pool_size": None,
        "max_concurrent_prompts": max_concurrent_prompts,
        "max_loads_per_server": 256,
    }
    return replace(
        recipe("async DAPO 2025", **options),
        habits=Habits(poll_s=0.1, drops_interrupted=True, drops_surplus=True, always_scores=True, balances_steps=True),
    )


def dynamic_sampling(*, batch: int) -> System:
    """DAPO's dynamic sampling as of 2025: whole batches, each awaited to its end, until B groups are valid."""
    return System(
        name="dynamic sampling",
        overrides=_everything_at_once(batch, stop_rule="drain", rollout_strategy="discard"),
        habits=Habits(refill=Refill.NEXT_BATCH, drops_surplus=True, always_scores=True, balances_steps=True),
    )


def april(*, over_sampling: int) -> System:
    """APRIL: over-sample, stop at B in order of completion, keep and resume the rest, drop complete surplus."""
    return System(
        name="APRIL",
        overrides=_everything_at_once(over_sampling, stop_rule="first_completed", rollout_strategy="partial"),
        habits=Habits(drops_surplus=True, always_scores=True),
    )


def copris(*, pool_size: int, over_sampling: int) -> System:
    """CoPRIS: a fixed number of trajectories in flight; the trainer recomputes log-probs of the whole buffer."""
    options = {
        "stop_rule": "first_completed",
        "rollout_strategy": "partial",
        "rollout_pool_size": pool_size,
        "max_loads_per_server": UNBOUNDED,
        "over_sampling_batch_size": over_sampling,
        "max_staleness": None,
    }
    habits = Habits(scores_buffer=True, always_scores=True, balances_steps=True)
    return replace(recipe(f"CoPRIS {pool_size}", **options), habits=habits)


def _everything_at_once(over_sampling: int, **async_dapo: Any) -> dict[str, Any]:
    """No limit on what runs: all prompts that were drawn are submitted at once."""
    options = {
        "rollout_pool_size": None,
        "max_concurrent_prompts": UNBOUNDED,
        "max_loads_per_server": UNBOUNDED,
        "over_sampling_batch_size": over_sampling,
        "max_staleness": None,
    }
    workers = {"actor_rollout_ref.rollout.agent.num_workers": 1}
    return workers | {f"async_dapo.{key}": value for key, value in (options | async_dapo).items()}


def waiting_at_updates(work: Sequence[float], *, ranks: int, updates: int, balances_steps: bool) -> float:
    """Of a step: seconds of all training ranks, which meet at every update, over those of equal work for all.

    Within a tenth of what the partitions of verl and of this recipe lead to. 1 where updates have less than a
    trajectory for each rank, which neither trains on.

    Args:
        balances_steps: each rank gets as much work of the whole step, trajectories of all lengths in no order, and
            cuts them into mini-batches; or else as much of each mini-batch.
    """
    usable, rng = len(work) - len(work) % (ranks * updates), np.random.default_rng(0)
    if not usable:
        return 1.0
    longest = np.sort(np.asarray(work, float))[::-1][:usable]
    balanced = 1 if balances_steps else updates  # so many parts of the work, each by itself
    dealt = np.sort(rng.permutation(longest).reshape(balanced, -1))[:, ::-1].reshape(balanced, -1, ranks)
    dealt[:, 1::2] = dealt[:, 1::2, ::-1]
    of_update = (rng.permuted(dealt[0], axis=0) if balances_steps else dealt).reshape(updates, -1, ranks).sum(axis=1)
    return float(of_update.max(axis=1).sum() * ranks / of_update.sum())


class TrainerPasses:
    """Seconds of a trainer's passes over a batch, those that compute log-probs and those that train."""

    def __init__(self, scenario: Scenario, habits: Habits, options: AsyncDAPOConfig) -> None:
        self._prompt_tok, self._cost = scenario.prompt_len_tok, scenario.training_cost()
        self._ranks = max(1, scenario.num_gpus // scenario.gpus_per_rank)
        self._updates, self._habits = scenario.updates, habits
        needs_pass = habits.always_scores or scenario.why_two_passes(options.importance_sampling) is not None
        self._scores_batch = needs_pass and options.importance_sampling is not ImportanceSampling.BYPASS

    def seconds(self, batch: Sequence[VersionTag], buffered_tok: Sequence[int]) -> tuple[float, float]:
        """Seconds to compute log-probs, and to train.

        Args:
            buffered_tok: lengths of the trajectories that are kept.
        """
        batch_tok = [sum(num_tok for _, num_tok in tag["segments"]) for tag in batch]
        scored = list(batch_tok) if self._scores_batch else []
        scored += [n for n in buffered_tok if n] if self._habits.scores_buffer else []
        return self._cost.log_prob_s(*self._sums(scored)), self._cost.train_s(*self._sums(batch_tok)) * self._wait(
            batch_tok
        )

    def _wait(self, batch_tok: Sequence[int]) -> float:
        if self._cost.fixed_s is not None:
            return 1.0
        work = [self._cost.log_prob_s(tokens, tokens**2) for tokens in map(self._prompt_tok.__add__, batch_tok)]
        by_step = self._habits.balances_steps or "mini_batches" not in declared()
        return waiting_at_updates(work, ranks=self._ranks, updates=self._updates, balances_steps=by_step)

    def _sums(self, lens_tok: Sequence[int]) -> tuple[float, float]:
        """Sum of the sequences' lengths, prompt included, and of their squares."""
        whole = [self._prompt_tok + n for n in lens_tok]
        return sum(whole), sum(n * n for n in whole)
