"""Tools in simulated runs: turns add up to the response, and who waits for a tool keeps nobody from generating."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import recipe
from recipe.async_dapo_lab.plan.workload import ANSWERS, ToolCalls

from ..support.plan_settings import OPTIONS, assert_nothing_vanished, mean_step, small_scenario


def tools(count: int) -> ToolCalls:
    return ToolCalls(count=count, median_s=1.0, sigma=0.5, seed=0)


@given(st.integers(1, 3000), st.integers(0, 20))
def test_turns_add_up_to_the_response_with_a_call_after_each_but_the_last(length_tok: int, count: int) -> None:
    done_tok, turns = 0, []
    while done_tok < length_tok:
        turns.append(tools(count).turn_left_tok(length_tok, done_tok))
        assert turns[-1] > 0
        done_tok += turns[-1]
    assert done_tok == length_tok
    assert len(turns) == min(count + 1, length_tok) and max(turns) - min(turns) <= 1


@pytest.mark.slow
@settings(max_examples=min(20, settings.default.max_examples))
@given(OPTIONS, st.integers(0, 99))
def test_given_tools_and_any_options_then_every_generated_token_is_accounted_for(options, seed) -> None:
    scenario = small_scenario(seed=seed, tool_calls=3, tool_median_s=5.0, tool_sigma=1.0)
    unlimited = {"algorithm.filter_groups.max_num_gen_batches": 0}
    assert_nothing_vanished(TrainingRun(scenario, recipe("any", **options).with_overrides(unlimited)), steps=4)


def test_given_long_tools_then_a_step_takes_longer_and_others_generate_meanwhile() -> None:
    system = recipe("pool", rollout_strategy="partial", rollout_pool_size=8, max_staleness=None)
    without = mean_step(small_scenario(), system)
    with_tools = mean_step(small_scenario(tool_calls=2, tool_median_s=20.0), system)
    assert with_tools.rollout_s > without.rollout_s
    trajectories = with_tools.generated_tok / without.generated_tok * 32
    one_after_another_s = without.rollout_s + trajectories * 2 * 20.0 / 8
    assert with_tools.rollout_s < 0.8 * one_after_another_s, "eight places that wait would take as long"


def test_given_calls_that_outlive_a_round_then_their_contexts_are_computed_again_with_the_new_weights() -> None:
    """With `partial_stale_kv` nothing else is."""
    scenario = small_scenario(tool_calls=1, tool_median_s=15.0)
    run = TrainingRun(scenario, recipe("kept", rollout_strategy="partial_stale_kv", rollout_pool_size=200))
    assert run.step().reprefilled_tok == 0, "within a round a context stays"
    contexts_tok = [
        scenario.prompt_len_tok + trajectory.generated_tok
        for group in run.pool.buffered
        for trajectory in group.unfinished
        if trajectory.session_id in group.prompt[ANSWERS].calls_left_s
    ]
    assert run.step().reprefilled_tok == sum(contexts_tok) > 0


def test_given_hundreds_of_groups_that_resume_at_their_tools_then_they_start_one_after_another_and_not_nested() -> None:
    many = {"train_batch_size": 300, "rollout_n": 2, "tool_calls": 1, "tool_median_s": 300.0, "tool_sigma": 0.01}
    run = TrainingRun(small_scenario(**many), recipe("waits", rollout_strategy="partial"))
    for _ in range(2):
        run.step()
    at_a_tool = [group for group in run.pool.buffered if group.prompt[ANSWERS].calls_left_s]
    assert len(at_a_tool) > sys.getrecursionlimit() / 5, "too few to show it: a start takes five frames"
    assert run.step().resumed_trajectories > 0
