"""What a step's measure says of itself, and what the mean of steps does."""

from dataclasses import replace

import pytest

from recipe.async_dapo_lab.plan.measures import StepMeasure, mean_of
from recipe.async_dapo_lab.plan.systems import verl_sync

from ..support.plan_settings import mean_step, small_scenario


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
    assert masked.tokens_per_s_per_gpu == 2.0 and masked.rollout_tokens_per_s_per_gpu == 4.0
    assert replace(masked, wasted_tok=100).waste_ratio == 0.8


def full(step: StepMeasure, places: int) -> StepMeasure:
    """In which all places are held all the time."""
    held_s = places * step.generating_s
    return replace(step, inflight_max=places, inflight_max_s=held_s, lease_s=held_s)


def test_steps_whose_places_were_all_full_are_not_idle_however_many_places_each_had(step):
    mean = mean_of([full(step, 100), full(step, 200)])
    assert mean.idle_ratio == 0.0 and mean.inflight_max == 200
    assert replace(mean, lease_s=mean.lease_s / 2).idle_ratio == 0.5


def test_a_step_without_any_request_is_not_idle(step):
    assert full(step, 0).idle_ratio == 0.0
