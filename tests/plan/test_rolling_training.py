"""Rounds without an end on engines of their own: nothing vanishes, engines never stop together, nothing is too old."""

from dataclasses import replace
from typing import Any

import pytest

from recipe.async_dapo.config import ConfigError
from recipe.async_dapo.core import over_sampling
from recipe.async_dapo.separate import deadlines, rolling_update
from recipe.async_dapo_lab.plan.candidates import bound_of
from recipe.async_dapo_lab.plan.costs import ServerConstants
from recipe.async_dapo_lab.plan.measures import StepMeasure, mean_of
from recipe.async_dapo_lab.plan.rolling_training import RollingRun
from recipe.async_dapo_lab.plan.separate_training import SeparateRun
from recipe.async_dapo_lab.plan.systems import recipe_separate, verl_separate_async

from ..support.plan_settings import small_scenario

SCENARIO = small_scenario(num_servers=4)
STRATEGIES = ["partial", "partial_stale_kv", "consistent"]


def rolling(scenario=SCENARIO, *, trains: int = 1, parts: int = 2, **options: Any) -> RollingRun:
    system = recipe_separate(trainer_servers=trains, servers=scenario.num_servers, parts=parts, **options)
    return RollingRun(scenario, system)


def mean_step(run: RollingRun | SeparateRun, *, steps: int = 12, warmup: int = 4) -> StepMeasure:
    return mean_of([run.step() for _ in range(warmup + steps)][warmup:])


def assert_all_is_accounted_for(steps: list[StepMeasure]) -> None:
    spent = sum(step.trained_tok + step.filtered_tok + step.wasted_tok for step in steps)
    assert sum(step.generated_tok for step in steps) == spent + steps[-1].buffered_tok
    assert all(step.trained_trajectories == 8 * 4 for step in steps)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("parts", [1, 4])
def test_given_any_strategy_then_every_generated_token_is_accounted_for(strategy, parts) -> None:
    run = rolling(parts=parts, rollout_strategy=strategy)
    assert_all_is_accounted_for([run.step() for _ in range(8)])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_given_replicas_that_die_and_join_in_every_step_then_nothing_vanishes(strategy) -> None:
    run = rolling(rollout_strategy=strategy)
    steps = []
    for number in range(8):
        steps.append(run.step())
        run.lose(f"server-{number}" if number < 3 else f"spot-{number - 3}")
        run.gain(f"spot-{number}")
    assert_all_is_accounted_for(steps)
    assert {step.num_servers for step in steps[1:]} <= {2, 3}, "a server that joins is not used"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("max_staleness", [0, 1, 4])
def test_given_a_limit_on_staleness_then_no_token_passes_it_and_none_is_thrown_away(strategy, max_staleness) -> None:
    run = rolling(rollout_strategy=strategy, max_staleness=max_staleness)
    steps = [run.step() for _ in range(10)]
    assert max(step.staleness_max for step in steps) <= max_staleness
    assert sum(step.wasted_tok + step.withheld_tok for step in steps) == 0


@pytest.mark.parametrize(("strategy", "max_staleness"), [("partial", 1), ("partial_stale_kv", 1), ("consistent", 3)])
def test_given_replicas_behind_by_more_than_production_allows_then_all_are_updated_at_once(strategy, max_staleness):
    replicas = rolling(rollout_strategy=strategy, max_staleness=max_staleness).replicas
    replicas.publish(1)
    replicas.publish(2)
    assert len(replicas.moves({})) == SCENARIO.num_servers - 1


def test_given_the_same_split_as_verls_then_a_step_is_shorter_and_engines_are_busier() -> None:
    verl = SeparateRun(SCENARIO, verl_separate_async(groups=8, trainer_servers=1, servers=4, parts=2))
    theirs, ours = mean_step(verl), mean_step(rolling())
    assert ours.step_s < 0.9 * theirs.step_s
    assert ours.server_busy_s / ours.step_s > theirs.server_busy_s / theirs.step_s
    assert ours.step_s > bound_of(SCENARIO).step_s - SCENARIO.update_s


def test_given_consistent_then_every_trajectory_has_one_version_and_with_partial_some_have_more() -> None:
    def versions(strategy: str) -> set[int]:
        run = rolling(rollout_strategy=strategy)
        seen = []
        finish = run.on_end
        run.on_end = lambda group, outcome: (seen.append(group), finish(group, outcome))  # type: ignore[method-assign]
        for _ in range(8):
            run.step()
        return {len({version for version, _ in one.stamps}) for group in seen for one in group.trajectories}

    assert versions("consistent") == {1}
    assert max(versions("partial")) > 1


def test_given_a_kept_cache_then_no_context_is_computed_again() -> None:
    assert mean_step(rolling(rollout_strategy="partial_stale_kv")).reprefilled_tok == 0
    assert mean_step(rolling(rollout_strategy="partial")).reprefilled_tok > 0


def test_given_a_slow_link_then_it_costs_the_trainer_a_transfer_a_step_and_engines_hardly_anything() -> None:
    slow = replace(SCENARIO, constants=ServerConstants(link_gb_s=1.0))
    fast_step, slow_step = mean_step(rolling()), mean_step(rolling(slow))
    assert 0 < slow_step.step_s - fast_step.step_s < 1.5 * (slow.transfer_s - SCENARIO.transfer_s)


def test_given_a_cap_on_older_tokens_then_fewer_groups_are_on_their_way_and_the_share_is_lower() -> None:
    free, capped = mean_step(rolling()), mean_step(rolling(max_partial_share=0.1))
    assert capped.off_policy_ratio < free.off_policy_ratio and capped.step_s > free.step_s


def test_given_discard_then_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="rollout_strategy=discard"):
        rolling(rollout_strategy="discard")


def test_given_a_simulated_run_then_the_recipes_own_machines_decide(monkeypatch) -> None:
    seams = [
        (rolling_update.RollingUpdate, "moves"),
        (rolling_update.RollingUpdate, "publish"),
        (deadlines.Deadlines, "may_begin"),
        (deadlines.Deadlines, "hand_over"),
        (over_sampling.RoundSize, "decide"),
        (over_sampling.OverSampling, "missing"),
    ]
    calls = set()
    for owner, name in seams:
        original, seam = getattr(owner, name), (owner, name)
        spied = lambda *args, _it=(seam, original), **kwargs: (calls.add(_it[0]), _it[1](*args, **kwargs))[1]  # noqa: E731
        monkeypatch.setattr(owner, name, spied)
    rolling().step()
    assert calls == set(seams)
