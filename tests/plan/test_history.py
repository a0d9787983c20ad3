"""Prompts chosen by history in the planner: the production class on the virtual clock, beside what enumeration says."""

from collections.abc import Sequence
from math import comb

import numpy as np
import pytest

from recipe.async_dapo.config import RolloutStrategy
from recipe.async_dapo.core.prompt_history import PassCount
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo_lab.plan.candidates import recipe_candidates
from recipe.async_dapo_lab.plan.recommend import history_advice, recommend
from recipe.async_dapo_lab.plan.sweep import sweep
from recipe.async_dapo_lab.plan.systems import recipe
from recipe.async_dapo_lab.plan.workload import BetaPassRates

from ..support.plan_settings import simulate, small_scenario

N = 16
A, B = 0.2, 0.6  # half of the groups are uniform
UNLIMITED = {"algorithm.filter_groups.max_num_gen_batches": 0}


def _answers_per_valid_group(steps) -> float:
    answered = N * sum(step.valid_groups + step.filtered_groups for step in steps)
    return answered / sum(step.valid_groups for step in steps)


def _drawn_share(pass_rate: float, exploration: float) -> float:
    """Probability that history draws a prompt at its second visit, by enumeration of the first one's right answers."""
    skipped = 0.0
    for right in range(N + 1):
        probability = comb(N, right) * pass_rate**right * (1 - pass_rate) ** (N - right)
        known = PassCount(right=right, wrong=N - right, visits=1)
        skipped += probability * (1 - exploration) * known.alike_share(N)
    return 1 - skipped


def _by_hand(pass_rates: Sequence[float], exploration: float) -> float:
    """Expected answers for each trained group at the second visit, over those without selection."""
    drawn = [_drawn_share(rate, exploration) for rate in pass_rates]
    mixed = [1 - rate**N - (1 - rate) ** N for rate in pass_rates]
    trained = sum(share * rate for share, rate in zip(drawn, mixed, strict=True))
    return sum(drawn) / trained * sum(mixed) / len(mixed)


def test_given_pass_rates_then_a_row_shows_history_and_it_is_advised_with_its_price_but_not_recommended() -> None:
    scenario = small_scenario(rollout_n=8, pass_rates=BetaPassRates(A, B))
    strategies, rules = [RolloutStrategy.PARTIAL], [StopRuleName.FIRST_COMPLETED]
    candidates = recipe_candidates(scenario, strategies=strategies, stop_rules=rules, concurrency=[2])
    assert [candidate.changes_data for candidate in candidates].count(True) == 1
    rows = sweep(scenario, candidates, steps=6, warmup=2)
    chosen = recommend(rows, max_length_bias=1.0, max_off_policy=1.0, kv_room=1).to_paste
    assert chosen is not None and not chosen.row.candidate.changes_data
    advice = history_advice(rows, chosen.row)
    assert advice is not None and "It changes the data" in advice
    [whole] = [row for row in rows if row.candidate.system.name == "partial first_completed auto"]
    [small] = [row for row in rows if row.candidate.concurrency == 2]
    assert small.mean.step_s > 1.5 * whole.mean.step_s, "a pool of two leaves the engines empty"
    assert history_advice(rows, small) == history_advice(rows, whole) == advice


@pytest.mark.slow
def test_history_at_the_second_visit_saves_what_the_distribution_of_pass_rates_says() -> None:
    """By enumeration of what the first visit may have shown, for each pass rate."""
    rates = np.random.default_rng(0).beta(A, B, size=4000).tolist()
    by_hand = _by_hand(rates, exploration=0.1)
    scenario = small_scenario(rollout_n=N, train_batch_size=64, num_servers=8, pass_rates=BetaPassRates(A, B))
    drains = recipe("drain", stop_rule="drain", rollout_strategy="discard").with_overrides(UNLIMITED)
    history = drains.with_overrides({"async_dapo.selection.by": "history"})
    whole, selected = (simulate(scenario, one, steps=24) for one in (drains, history))
    predicted = _answers_per_valid_group(selected) / _answers_per_valid_group(whole)
    assert by_hand < 0.8 and predicted == pytest.approx(by_hand, rel=0.03)


def test_given_only_a_share_of_valid_groups_then_no_row_claims_to_know_what_history_saves() -> None:
    strategies, rules = [RolloutStrategy.PARTIAL], [StopRuleName.FIRST_COMPLETED]
    rows = recipe_candidates(small_scenario(), strategies=strategies, stop_rules=rules, concurrency=[])
    assert not any(candidate.changes_data for candidate in rows)
