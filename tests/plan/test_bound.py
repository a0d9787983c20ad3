"""What a step's measure says of itself; and the bound: what engines that are never idle would need, and no system that
learns from whole groups undercuts."""

from dataclasses import replace

import numpy as np
import pytest

from recipe.async_dapo_lab.plan.candidates import best_tokens_per_s, bound_of
from recipe.async_dapo_lab.plan.costs import StepCost
from recipe.async_dapo_lab.plan.measures import StepMeasure, mean_of
from recipe.async_dapo_lab.plan.systems import recipe, verl_sync

from ..support.plan_settings import mean_step, small_scenario

COST = StepCost(
    base_s=0.01,
    per_request_s=1e-4,
    per_kv_token_s=1e-8,
    prefill_token_s=0.0,
    prefill_token2_s=0.0,
    kv_room_tok=10_000,
)


def test_given_equal_lengths_then_the_best_throughput_is_that_of_the_largest_batch_that_fits() -> None:
    lens_tok = np.full(100, 100.0)
    rate = best_tokens_per_s(COST, lens_tok, prompt_len_tok=50, max_num_seqs=1000)
    batch = 10_000 // 100  # mean context: the prompt and half of the response
    assert rate == pytest.approx(batch / (0.01 + batch * (1e-4 + 1e-8 * 100)))
    assert best_tokens_per_s(COST, lens_tok, prompt_len_tok=50, max_num_seqs=7) < rate


def test_given_no_filter_or_one_answer_then_no_group_is_generated_in_vain() -> None:
    setting = small_scenario()
    alone = replace(setting, rollout_n=1)
    assert bound_of(setting, filters=False).needed_tok < 0.9 * bound_of(setting).needed_tok
    assert bound_of(alone) == bound_of(alone, filters=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sync", "partial", "discard"])
def test_given_any_system_then_its_steps_take_at_least_the_bound_in_the_mean(name: str) -> None:
    setting = small_scenario()
    systems = {
        "sync": verl_sync(groups=setting.train_batch_size),
        "partial": recipe("partial", rollout_strategy="partial"),
        "discard": recipe("discard", rollout_strategy="discard"),
    }
    mean = mean_step(setting, systems[name], steps=60, warmup=10)
    assert bound_of(setting).step_s <= 1.02 * mean.step_s


@pytest.fixture(scope="module")
def step() -> StepMeasure:
    return mean_step(small_scenario(), verl_sync(groups=8), steps=1, warmup=0)


def test_tokens_withheld_from_the_loss_are_wasted_and_count_neither_as_trained_nor_as_fresh(step):
    masked = replace(
        step, trained_tok=100, withheld_tok=60, off_policy_tok=40, staleness_tok=80, wasted_tok=0, step_s=10.0,
        rollout_s=5.0, num_gpus=2,
    )  # fmt: skip
    assert masked.off_policy_ratio == 1.0 and masked.staleness_mean == 2.0
    assert masked.waste_ratio == 0.6
    assert masked.tokens_per_s_per_gpu == 2.0
    assert replace(masked, wasted_tok=100).waste_ratio == 0.8


def full(step: StepMeasure, places: int) -> StepMeasure:
    """In which all places are held all the time."""
    held_s = places * step.rollout_s
    return replace(step, inflight_max=places, inflight_max_s=held_s, lease_s=held_s)


def test_steps_whose_places_were_all_full_are_not_idle_however_many_places_each_had(step):
    mean = mean_of([full(step, 100), full(step, 200)])
    assert mean.idle_ratio == 0.0 and mean.inflight_max == 200
    assert replace(mean, lease_s=mean.lease_s / 2).idle_ratio == 0.5
