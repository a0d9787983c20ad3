"""Discard with fifo and a history: long answers start first, less is interrupted, and no length is preferred."""

import pytest

from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.systems import recipe

from ..support.plan_settings import mean_step, natural_len_tok, small_scenario

HISTORY = {"async_dapo.selection.history_file": "history.json"}
FIFO = recipe("fifo", rollout_strategy="discard", stop_rule="fifo")


@pytest.mark.slow
def test_where_lengths_repeat_less_is_wasted_and_what_is_trained_is_as_long_as_ever():
    scenario = small_scenario(train_batch_size=16, lengths=LogNormalLengths(median_tok=400, sigma=0.9, correlation=0.9))
    plain = mean_step(scenario, FIFO, steps=40)
    known = mean_step(scenario, FIFO.with_overrides(HISTORY), steps=40)
    assert known.wasted_tok < 0.7 * plain.wasted_tok and known.step_s < 0.97 * plain.step_s
    assert known.trained_len_tok == pytest.approx(natural_len_tok(scenario), rel=0.05)


def test_strategies_that_keep_tokens_start_in_the_order_of_the_data_loader():
    scenario, partial = small_scenario(), recipe("partial", rollout_strategy="partial")
    steps = [mean_step(scenario, one, steps=3) for one in (partial, partial.with_overrides(HISTORY))]
    assert steps[0] == steps[1]
