"""Other systems, as settings of the same machinery: each shows the habit it is known for."""

from dataclasses import replace

import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import (
    async_dapo_2025,
    copris,
    recipe,
    verl_colocate_async,
    verl_sync,
)

from ..support.plan_settings import mean_step, simulate, small_scenario


def seconds_of_rollout(measure) -> float:
    return measure.rollout_s - small_scenario().constants.stop_s


def test_given_an_option_that_the_recipe_refuses_then_the_plan_refuses_it_too():
    with pytest.raises(ConfigError, match="max_tokens_per_round"):
        TrainingRun(small_scenario(), recipe("bad", rollout_strategy="discard", max_tokens_per_round=5))


@pytest.mark.parametrize(("system", "poll_s"), [(verl_sync(groups=8), 2.0), (async_dapo_2025(over_sampling=16), 0.1)])
def test_given_a_polling_trainer_then_a_rollout_ends_at_a_poll(system, poll_s):
    for measure in simulate(small_scenario(), system):
        polls = seconds_of_rollout(measure) / poll_s
        assert polls == pytest.approx(round(polls), abs=1e-6)


def test_given_verl_sync_then_it_refills_two_for_one_and_throws_the_surplus_away():
    measures = simulate(small_scenario(), verl_sync(groups=8), steps=12)
    assert sum(measure.wasted_tok for measure in measures) > 0
    assert all(measure.buffered_tok == 0 and measure.off_policy_tok == 0 for measure in measures)
    assert all(measure.valid_groups >= 8 for measure in measures)
    assert any(measure.drawn_groups > 8 for measure in measures)


def test_given_colocate_async_then_waiting_for_polls_and_resumption_makes_rollouts_longer():
    system = verl_colocate_async(groups=8)
    prompt = replace(system, habits=replace(system.habits, poll_s=0.0, resume_delay_s=0.0))
    delayed = mean_step(small_scenario(), system)
    assert delayed.resumed_trajectories > 0 and delayed.wasted_tok == 0
    assert delayed.rollout_s > mean_step(small_scenario(), prompt).rollout_s + 0.5


@pytest.mark.slow
def test_given_copris_then_the_pool_is_always_full_and_the_buffer_is_scored_again():
    scenario = small_scenario()
    measure = mean_step(scenario, copris(pool_size=24, over_sampling=64))
    plain = mean_step(scenario, recipe("pool", rollout_strategy="partial", stop_rule="first_completed",
                                       rollout_pool_size=24, over_sampling_batch_size=64))  # fmt: skip
    assert measure.inflight_max == 24 and measure.idle_ratio < 0.02
    assert measure.log_prob_s > plain.log_prob_s
