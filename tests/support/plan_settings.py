"""A small setting that simulates in milliseconds."""

from typing import Any

from hypothesis import strategies as st

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo_lab.plan.hardware import find_accelerator, load_model
from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.measures import StepMeasure, mean_of
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import System

# Of this copy.
STRATEGIES = [one for one in RolloutStrategy if one is not RolloutStrategy.PARTIAL_STALE_KV or "host_kv" in declared()]
_CHOICES = st.fixed_dictionaries(
    {
        "rollout_strategy": st.sampled_from(STRATEGIES).map(str),
        "stop_rule": st.sampled_from(list(StopRuleName)).map(str),
        "rollout_pool_size": st.sampled_from([None, 5, 24, 100]),
        "max_concurrent_prompts": st.integers(1, 4),
        "max_loads_per_server": st.sampled_from([1, 8, 64]),
        "over_sampling_batch_size": st.sampled_from(["auto", 3, 12, 40]),
        "max_staleness": st.sampled_from([None, 0, 1, 4]),
        "max_partial_share": st.sampled_from([None, 0.2]),
    }
)


def _with_room_for_old_kv(options: dict[str, Any]) -> dict[str, Any]:
    """Old KV waits in host memory, where engines share the trainer's GPUs."""
    keeps = options["rollout_strategy"] == RolloutStrategy.PARTIAL_STALE_KV
    return options | ({"host_kv_gib": 8.0} if keeps else {})


OPTIONS = _CHOICES.map(_with_room_for_old_kv)


def small_scenario(**changes: Any) -> Scenario:
    values = {
        "model": load_model("qwen3-8b"),
        "accelerator": find_accelerator("h200"),
        "num_servers": 2,
        "train_batch_size": 8,
        "rollout_n": 4,
        "max_response_length": 2048,
        "lengths": LogNormalLengths(median_tok=400, sigma=0.9, correlation=0.5),
        "valid_share": 0.6,
    }
    return Scenario(**(values | changes))


def simulate(scenario: Scenario, system: System, *, steps: int = 6) -> list[StepMeasure]:
    run = TrainingRun(scenario, system)
    return [run.step() for _ in range(steps)]


def mean_step(scenario: Scenario, system: System, *, steps: int = 12, warmup: int = 4) -> StepMeasure:
    return mean_of(simulate(scenario, system, steps=warmup + steps)[warmup:])


def natural_len_tok(scenario: Scenario) -> float:
    """Mean response length of the data set's valid groups [tokens]."""
    workload = scenario.workload()
    workload.answers(8192)
    return workload.mean_drawn_tok


def assert_nothing_vanished(run: TrainingRun, steps: int) -> None:
    """Generated = trained + filtered + thrown away + kept, and every lease is back."""
    measures = [run.step() for _ in range(steps)]
    spent = sum(step.trained_tok + step.filtered_tok + step.wasted_tok for step in measures)
    assert sum(step.generated_tok for step in measures) == spent + measures[-1].buffered_tok
    assert all(step.trained_trajectories == 8 * 4 for step in measures)
    assert run._fleet.leases.total_inflight == 0
