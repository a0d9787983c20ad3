"""The bound: what engines that are never idle would need, and no system that learns from whole groups undercuts."""

import numpy as np
import pytest

from recipe.async_dapo_lab.plan.candidates import best_tokens_per_s, bound_of
from recipe.async_dapo_lab.plan.costs import StepCost
from recipe.async_dapo_lab.plan.systems import recipe, verl_sync
from recipe.async_dapo_lab.plan.workload import ValidShare

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


def test_given_filtered_groups_then_more_tokens_are_needed_and_no_more_trained() -> None:
    all_valid, half_valid = (
        bound_of(small_scenario(pass_rates=ValidShare(1.0))),
        bound_of(small_scenario(pass_rates=ValidShare(0.5))),
    )
    assert half_valid.needed_tok == pytest.approx(2 * all_valid.needed_tok, rel=0.1)
    assert half_valid.trained_tok == pytest.approx(all_valid.trained_tok, rel=0.05)
    assert half_valid.step_s - half_valid.rollout_s == pytest.approx(all_valid.step_s - all_valid.rollout_s, rel=0.05)


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
