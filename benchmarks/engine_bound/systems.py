"""What is compared where the engines are the bottleneck: settings, systems, and the planner's name for each."""

from dataclasses import dataclass, replace

from recipe.async_dapo.plan.candidates import Candidate, default_concurrency, pool_options
from recipe.async_dapo.plan.scenario import Scenario
from recipe.async_dapo.plan.sweep import simulate
from recipe.async_dapo.plan.systems import System, recipe, verl_colocate_async, verl_sync

PROMPT_TOK = 188  # of the stand-in prompts
SHORT_POLL_S = 0.05
PLANNED_STEPS, PLANNED_WARMUP = 10, 5
SLACK_TOK = 1024  # beyond the longest trajectory, in a micro batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A cluster of H200s, one server each, and a task; lengths are log-normal."""

    name: str
    servers: int
    batch_groups: int
    n: int
    limit_tok: int
    median_tok: float
    sigma: float
    speedup: float  # that two cores can follow

    def overrides(self) -> list[str]:
        return [
            "rehearsal.stand_in=True",
            f"rehearsal.speedup={self.speedup}",
            f"rehearsal.length_median_tok={self.median_tok}",
            f"rehearsal.length_sigma={self.sigma}",
            f"rehearsal.prompt_len_tok={PROMPT_TOK}",
            "trainer.nnodes=1",
            f"trainer.n_gpus_per_node={self.servers}",
            f"data.train_batch_size={self.batch_groups}",
            "data.max_prompt_length=256",
            f"data.max_response_length={self.limit_tok}",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
            "actor_rollout_ref.rollout.gpu_memory_utilization=0.85",
            "actor_rollout_ref.rollout.max_num_seqs=256",
            f"actor_rollout_ref.rollout.n={self.n}",
            "actor_rollout_ref.actor.use_dynamic_bsz=True",
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={self.limit_tok + SLACK_TOK}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch_groups}",
            "trainer.val_before_train=False",
            "trainer.test_freq=-1",
            "trainer.save_freq=-1",
        ]


SETTINGS = {
    setting.name: setting
    for setting in (
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
    short = replace(asynchronous, habits=replace(asynchronous.habits, poll_s=SHORT_POLL_S))
    result = {
        "verl sync": Row(overrides=_verl("sync", poll_s=2.0), planned=verl_sync(groups=groups)),
        "verl colocate_async": Row(overrides=_verl("colocate_async", poll_s=2.0), planned=asynchronous),
        "verl colocate_async, 0.05 s poll": Row(overrides=_verl("colocate_async", poll_s=SHORT_POLL_S), planned=short),
        "partial, defaults": _recipe(rollout_strategy="partial"),
    }
    for strategy in ("discard", "partial", "partial_stale_kv", "consistent"):
        pools = [pool_options(scenario, size) for size in default_concurrency(scenario)]
        tried = [_recipe(rollout_strategy=strategy, **pool) for pool in pools]
        result[strategy] = min(tried, key=lambda row: planned_step_s(scenario, row))
    return result


def planned_step_s(scenario: Scenario, row: Row) -> float:
    """What the planner predicts for a system [s]."""
    candidate = Candidate(system=row.planned, strategy="", stop_rule="", concurrency=None)
    mean, _ = simulate(scenario, candidate, steps=PLANNED_STEPS, warmup=PLANNED_WARMUP)
    return mean.step_s


def _verl(mode: str, *, poll_s: float) -> tuple[str, ...]:
    return f"trainer.v1.trainer_mode={mode}", f"rehearsal.poll_s={poll_s}"


def _recipe(**options: object) -> Row:
    overrides = [f"async_dapo.{key}={value}" for key, value in options.items()]
    if options["rollout_strategy"] == "partial_stale_kv":
        overrides.append("actor_rollout_ref.rollout.free_cache_engine=False")
    return Row(overrides=tuple(overrides), planned=recipe("planned", **options))
