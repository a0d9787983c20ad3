"""What is compared where the engines are the bottleneck: settings, systems, and the planner's name for each."""

from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev

from benchmarks.support.rehearsed import verl_overrides
from recipe.async_dapo_lab.plan.candidates import (
    Candidate,
    bound_of,
    default_concurrency,
    pool_options,
    separate_splits,
)
from recipe.async_dapo_lab.plan.inputs import Inputs
from recipe.async_dapo_lab.plan.measures import StepMeasure
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.sweep import simulate
from recipe.async_dapo_lab.plan.systems import System, recipe, verl_colocate_async, verl_sync

PROMPT_TOK = 188  # of the stand-in prompts
SHORT_POLL_S = 0.05
DRAFTS_ACCEPTED = 0.6  # tokens of a request and step, in the row with drafts
WARMUP = 2  # steps of a rehearsal that do not count
SETTLED_STEPS, SETTLED_WARMUP = 10, 5  # in which the planner compares pools and splits
PLANNED_SEEDS = range(20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A cluster of one-GPU servers, and a task; lengths are log-normal."""

    name: str
    servers: int
    batch_groups: int
    n: int
    limit_tok: int
    median_tok: float
    sigma: float
    speedup: float  # that two cores should follow; a run says whether they did
    accelerator: str = "h200"

    def scenario(self) -> Scenario:
        values = {
            "servers": self.servers,
            "accelerator": self.accelerator,
            "train_batch_size": self.batch_groups,
            "rollout_n": self.n,
            "max_response_length": self.limit_tok,
            "prompt_len_tok": PROMPT_TOK,
            "length_median_tok": self.median_tok,
            "length_sigma": self.sigma,
            "drafts_accepted": DRAFTS_ACCEPTED,
        }
        return Inputs.load(None, values).scenario()


SETTINGS = {  # those of 1 H100, of 2 servers with 40K and of 8 with B=64 are of the grid of `benchmarks.defaults`, too
    setting.name: setting
    for setting in (
        Setting(
            name="1 H100, B=32, n=8, 4K", accelerator="h100",
            servers=1, batch_groups=32, n=8, limit_tok=4096, median_tok=1200, sigma=0.9, speedup=10,
        ),
        Setting(
            name="2 servers, B=32, n=16, 40K",
            servers=2, batch_groups=32, n=16, limit_tok=40_960, median_tok=5000, sigma=1.2, speedup=50,
        ),
        Setting(
            name="2 servers, B=8, n=8, 8K",
            servers=2, batch_groups=8, n=8, limit_tok=8192, median_tok=2000, sigma=0.9, speedup=16,
        ),
        Setting(
            name="2 servers, B=16, n=8, 16K",
            servers=2, batch_groups=16, n=8, limit_tok=16_384, median_tok=4000, sigma=0.9, speedup=15,
        ),
        Setting(
            name="8 servers, B=64, n=8, 16K",
            servers=8, batch_groups=64, n=8, limit_tok=16_384, median_tok=4000, sigma=0.9, speedup=5,
        ),
        Setting(
            name="32 servers, B=64, n=16, 16K",
            servers=32, batch_groups=64, n=16, limit_tok=16_384, median_tok=4000, sigma=0.9, speedup=3,
        ),
        Setting(
            name="8 servers, B=128, n=8, 8K, short tail",
            servers=8, batch_groups=128, n=8, limit_tok=8192, median_tok=550, sigma=1.0, speedup=5,
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One system: how it is rehearsed, and how the planner simulates it."""

    overrides: tuple[str, ...]
    planned: System


def rows(scenario: Scenario) -> dict[str, Row]:
    """verl's modes as they are and with a short poll, and this recipe: as it is, and with the pool that is planned."""
    groups = scenario.train_batch_size
    asynchronous = verl_colocate_async(groups=groups)
    short_overrides = verl_overrides("colocate_async", poll_s=SHORT_POLL_S)
    splits = [_separate(scenario, with_short_poll(system)) for system in separate_splits(scenario)]
    settled_step_s = partial(_settled_step_s, scenario)
    result = {
        "verl sync": Row(overrides=verl_overrides("sync", poll_s=2.0), planned=verl_sync(groups=groups)),
        "verl colocate_async": Row(overrides=verl_overrides("colocate_async", poll_s=2.0), planned=asynchronous),
        "verl colocate_async, 0.05 s poll": Row(overrides=short_overrides, planned=with_short_poll(asynchronous)),
    }
    if splits:  # one server cannot be split
        result["verl separate_async, 0.05 s poll"] = min(splits, key=settled_step_s)
    result["partial, defaults"] = _recipe(rollout_strategy="partial")
    result["partial, drafts"] = _recipe(rollout_strategy="partial", drafts="suffix")
    result["partial, fixed lanes"] = _recipe(rollout_strategy="partial", rollout_pool_size=None)
    result["discard, fifo"] = _recipe(rollout_strategy="discard", stop_rule="fifo")  # nothing old is trained
    for strategy in ("discard", "partial", "partial_stale_kv", "consistent"):
        pools = [pool_options(scenario, size) for size in default_concurrency(scenario)]
        tried = [_recipe(rollout_strategy=strategy, **pool) for pool in pools]
        result[strategy] = min(tried, key=settled_step_s)
    return result


def planned(scenario: Scenario, row: Row, *, steps: int, warmup: int) -> dict[str, float]:
    """Columns of what the planner predicts for the steps that a rehearsal counts: the mean over seeds, and how far one
    seed is from it (standard deviation, over the mean)."""
    seeds = [replace(scenario, seed=seed) for seed in PLANNED_SEEDS]
    means = [_simulated(one, row, steps=steps, warmup=warmup) for one in seeds]
    natural_tok = bound_of(scenario).trained_len_tok
    step_s = fmean(mean.step_s for mean in means)
    return {
        "planned_step_s": round(step_s, 2),
        "planned_spread": round(stdev(mean.step_s for mean in means) / step_s, 3),
        "planned_length_bias": round(fmean(mean.trained_len_tok for mean in means) / natural_tok, 3),
        "planned_off_policy": round(fmean(mean.off_policy_ratio for mean in means), 3),
    }


def _settled_step_s(scenario: Scenario, row: Row) -> float:
    return _simulated(scenario, row, steps=SETTLED_STEPS, warmup=SETTLED_WARMUP).step_s


def _simulated(scenario: Scenario, row: Row, *, steps: int, warmup: int) -> StepMeasure:
    candidate = Candidate(system=row.planned, strategy="", stop_rule="", concurrency=None)
    mean, _ = simulate(scenario, candidate, steps=steps, warmup=warmup)
    return mean


def with_short_poll(system: System) -> System:
    return replace(system, habits=replace(system.habits, poll_s=SHORT_POLL_S))


def _separate(scenario: Scenario, system: System) -> Row:
    """A split of the same GPUs."""
    habits = system.habits
    trainer_gpus = habits.trainer_servers * scenario.tensor_parallel_size
    overrides = (
        *verl_overrides("separate_async", poll_s=habits.poll_s),
        f"trainer.n_gpus_per_node={trainer_gpus}",
        f"trainer.v1.separate_async.parameter_sync_step={habits.parts}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={scenario.train_batch_size // habits.parts}",
        "actor_rollout_ref.hybrid_engine=False",
        "actor_rollout_ref.rollout.nnodes=1",
        f"actor_rollout_ref.rollout.n_gpus_per_node={scenario.num_gpus - trainer_gpus}",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    )
    return Row(overrides=overrides, planned=system)


def _recipe(**options: object) -> Row:
    overrides = [f"async_dapo.{key}={'null' if value is None else value}" for key, value in options.items()]
    if options["rollout_strategy"] == "partial_stale_kv":
        overrides.append("actor_rollout_ref.rollout.free_cache_engine=False")
    return Row(overrides=tuple(overrides), planned=recipe("planned", **options))
