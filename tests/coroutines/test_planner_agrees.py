"""The planner and the code that runs agree: the same options, or the same one of verl's own trainer modes, on the same
server model, take the same time.

By default that is asked of three systems: one that discards, one that resumes, and one of verl's.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import System, recipe, verl_colocate_async, verl_sync

from ..support.emulated_cluster import EmulatedCluster
from ..support.plan_settings import small_scenario
from ..support.verl_cluster import COLOCATE, SYNC, VerlCluster

WARMUP = 3
STEPS = 12  # counted
LONGER = 40  # counted where chance makes 5 % over twelve: rounds sized by the last
LONGEST = 160  # half of what is drawn is thrown away and answered anew, differently in both
AGREEMENT = 0.05  # of the seconds of a rollout, or of a step of verl's
SCENARIO = small_scenario(
    num_servers=4,
    train_batch_size=8,
    rollout_n=4,
    max_num_seqs=16,
    prompt_len_tok=2,
    max_response_length=900,
    lengths=LogNormalLengths(median_tok=250, sigma=0.8, correlation=0.5),
    valid_share=0.6,
)
SYSTEMS = {
    "discard fifo": {"rollout_strategy": "discard", "over_sampling_batch_size": 16},
    "discard drain": {"rollout_strategy": "discard", "stop_rule": "drain", "over_sampling_batch_size": 16},
    "partial": {"rollout_strategy": "partial", "over_sampling_batch_size": 24},
    "partial, pool": {"rollout_strategy": "partial", "over_sampling_batch_size": 32, "rollout_pool_size": 48},
    "consistent": {"rollout_strategy": "consistent", "over_sampling_batch_size": 16},
}
GROUPS = SCENARIO.train_batch_size
VERLS = {
    "sync": (SYNC, verl_sync(groups=GROUPS)),
    "colocate_async": (COLOCATE, verl_colocate_async(groups=GROUPS)),
}
BY_DEFAULT = {"discard drain", "partial, pool", "colocate_async"}

pytestmark = pytest.mark.slow


def every(names: Iterable[str]) -> list[Any]:
    return [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.nightly) for name in names]


@pytest.mark.parametrize("name", every(SYSTEMS))
def test_given_any_strategy_when_run_on_emulated_engines_then_its_rollouts_take_what_the_planner_says(
    monkeypatch, clusters, name
) -> None:
    assert sum(rehearsed(SCENARIO, name, clusters, monkeypatch)) == pytest.approx(
        sum(planned(SCENARIO, name)), rel=AGREEMENT
    )


@pytest.mark.nightly
def test_given_drafts_when_run_on_emulated_engines_then_rollouts_take_what_the_planner_says(monkeypatch, clusters):
    changes = {"async_dapo.drafts": "suffix"}
    scenario = replace(SCENARIO, drafts_accepted=1.5)
    planned_s = sum(planned(scenario, "partial", changes))
    assert sum(rehearsed(scenario, "partial", clusters, monkeypatch, changes)) == pytest.approx(
        planned_s, rel=AGREEMENT
    )
    assert planned_s < 0.9 * sum(planned(scenario, "partial")), "drafts save no time here"


@pytest.mark.parametrize("name", every(VERLS))
def test_given_a_mode_of_verls_when_run_on_emulated_engines_then_its_steps_take_what_the_planner_says(
    monkeypatch, clusters, name
) -> None:
    mode, verls = VERLS[name]
    plan = TrainingRun(SCENARIO, verls)
    planned_s = [plan.step().step_s for _ in range(WARMUP + STEPS)][WARMUP:]
    with monkeypatch.context() as patched:
        cluster = VerlCluster(patched, SCENARIO, mode, passes=plan._trainer)
        clusters.append(cluster)
        measured_s = [cluster.step() for _ in range(WARMUP + STEPS)][WARMUP:]
    assert sum(measured_s) == pytest.approx(sum(planned_s), rel=AGREEMENT)


def planned(scenario: Scenario, name: str, changes: dict[str, Any] | None = None) -> list[float]:
    """Seconds of each rollout."""
    run = TrainingRun(scenario, system(name, changes))
    return [run.step().rollout_s for _ in range(steps(name))][WARMUP:]


def rehearsed(
    scenario: Scenario,
    name: str,
    clusters: list[EmulatedCluster],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any] | None = None,
) -> list[float]:
    """Seconds of each rollout."""
    options = TrainingRun(scenario, system(name, changes)).options
    without_trainer = tuple(one for one in options.extensions if one != "concurrency_log")  # it logs for one
    options = replace(options, calls=replace(options.calls, short_s=1e-3), extensions=without_trainer)  # as planned
    with monkeypatch.context() as patched:
        cluster = EmulatedCluster(patched, options, scenario)
        clusters.append(cluster)
        return [cluster.step()["async_dapo/round/rollout_s"] for _ in range(steps(name))][WARMUP:]


def system(name: str, changes: dict[str, Any] | None = None) -> System:
    draws_enough = {"algorithm.filter_groups.max_num_gen_batches": 0}
    return recipe(name, max_loads_per_server=16, **SYSTEMS[name]).with_overrides(draws_enough | (changes or {}))


def steps(name: str) -> int:
    if name == "discard fifo":
        return WARMUP + LONGEST
    return WARMUP + (LONGER if name == "partial" else STEPS)
