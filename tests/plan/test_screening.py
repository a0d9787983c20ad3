"""Screening in the planner: the production class on the virtual clock, beside what is computed by hand."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.support.exact_selection import (
    AllScreened,
    answers,
    answers_per_trained_group,
    answers_per_trained_group_by_history,
    update_weight,
)
from recipe.async_dapo.config import RolloutStrategy
from recipe.async_dapo.core.prompt_history import PromptHistory, SelectBy, Selection
from recipe.async_dapo.core.screening import NO_SCREENING, Screening
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo_lab.plan.candidates import recipe_candidates
from recipe.async_dapo_lab.plan.recommend import (
    drawn_share,
    history_advice,
    recommend,
    screening_advice,
    trained_share,
)
from recipe.async_dapo_lab.plan.sweep import sweep
from recipe.async_dapo_lab.plan.systems import recipe
from recipe.async_dapo_lab.plan.workload import BetaPassRates

from ..support.plan_settings import simulate, small_scenario

N, SAMPLES = 16, 4
A, B = 0.2, 0.6  # half of the groups are uniform
UNLIMITED = {"algorithm.filter_groups.max_num_gen_batches": 0}


def uniform_share(n: int) -> float:
    """Of groups of n, by the moments of Beta(A, B)."""
    right = prod((A + i) / (A + B + i) for i in range(n))
    wrong = prod((B + i) / (A + B + i) for i in range(n))
    return right + wrong


@pytest.mark.slow
def test_the_reference_row_saves_what_the_distribution_of_pass_rates_says() -> None:
    """By hand: k answers of a screened-out group, n of another; a group is trained if its first k are mixed."""
    screened_out = uniform_share(SAMPLES)
    with_screening = (SAMPLES * screened_out + N * (1 - screened_out)) / (1 - screened_out)
    by_hand = with_screening / (N / (1 - uniform_share(N)))
    scenario = small_scenario(rollout_n=N, train_batch_size=64, num_servers=8, pass_rates=BetaPassRates(A, B))
    drains = recipe("drain", stop_rule="drain", rollout_strategy="discard").with_overrides(UNLIMITED)
    screens = AllScreened(name="screens", overrides={**drains.overrides, "async_dapo.screening.samples": SAMPLES})
    whole, screened = (simulate(scenario, one, steps=24) for one in (drains, screens))
    predicted = _answers_per_valid_group(screened) / _answers_per_valid_group(whole)
    assert predicted == pytest.approx(by_hand, rel=0.03)


def _answers_per_valid_group(steps) -> float:
    answered = sum(SAMPLES * s.screened_groups + N * (s.valid_groups + s.filtered_groups) for s in steps)
    return answered / sum(step.valid_groups for step in steps)


@pytest.mark.parametrize("strategy", RolloutStrategy)
def test_given_screening_then_every_generated_token_is_accounted_for(strategy) -> None:
    scenario = small_scenario(rollout_n=8, pass_rates=BetaPassRates(A, B))
    system = recipe("any", rollout_strategy=strategy.value).with_overrides(
        UNLIMITED | {"async_dapo.screening.samples": 3}
    )
    steps = simulate(scenario, system, steps=8)
    spent = sum(s.trained_tok + s.filtered_tok + s.screened_tok + s.wasted_tok for s in steps)
    assert sum(step.generated_tok for step in steps) == spent + steps[-1].buffered_tok
    assert sum(step.screened_groups for step in steps) > 0
    assert all(step.trained_trajectories == 8 * 8 for step in steps)


class _NoneScreened(AllScreened):
    KEEP_SHARE = 1.0


def test_given_that_every_group_is_kept_then_the_steps_are_those_without_screening() -> None:
    scenario = small_scenario(rollout_n=8, pass_rates=BetaPassRates(A, B))
    off = recipe("off").with_overrides(UNLIMITED)
    kept = _NoneScreened(name="kept", overrides={**off.overrides, "async_dapo.screening.samples": 3})
    assert simulate(scenario, kept) == simulate(scenario, off)


SCREENINGS = st.builds(Screening, samples=st.integers(2, 5), keep_share=st.sampled_from([0.0, 0.1, 1.0]))


@given(rate=st.floats(0.01, 0.99), n=st.integers(6, 16), screening=SCREENINGS)
def test_frequencies_lie_between_none_and_those_without_screening(rate, n, screening) -> None:
    whole = trained_share(rate, n, NO_SCREENING)
    assert 0 < trained_share(rate, n, screening) <= whole + 1e-12
    assert update_weight(rate, n, screening) <= update_weight(rate, n, NO_SCREENING) + 1e-12
    assert screening.samples <= answers(rate, n, screening) <= n
    if screening.keep_share == 1.0:
        assert trained_share(rate, n, screening) == pytest.approx(whole)
        assert update_weight(rate, n, screening) == pytest.approx(update_weight(rate, n, NO_SCREENING))


@pytest.mark.parametrize("rate", [0.05, 0.4, 0.9])
def test_the_enumeration_agrees_with_the_class_that_decides(rate: float) -> None:
    """20,000 groups through `core.screening`."""
    n, screening, groups = 8, Screening(samples=3, keep_share=0.3), 20_000
    is_right = np.random.default_rng(0).random((groups, n)) < rate
    trained = weights = 0.0
    for i, row in enumerate(is_right):
        mixed = _ends_mixed(row.tolist(), screening, f"uid-{i}")
        trained += mixed
        weights += mixed * float(np.sqrt(row.sum() * (n - row.sum()))) / n
    assert trained / groups == pytest.approx(trained_share(rate, n, screening), abs=0.012)
    assert weights / groups == pytest.approx(update_weight(rate, n, screening), abs=0.006)


def _ends_mixed(row: list[bool], screening: Screening, uid: str) -> bool:
    group = PromptGroup(uid=uid, prompt={}, drawn_at_step=1, trajectories=[Trajectory(session_id=i) for i in range(8)])
    while runnable := screening.to_run(group):
        for trajectory in runnable:
            trajectory.finish(True)
        group.is_certain = len({row[one.session_id] for one in group.trajectories if one.is_finished}) == 2
    return not screening.is_screened_out(group) and 0 < sum(row) < 8


def test_given_pass_rates_then_a_row_shows_screening_and_it_is_advised_with_its_price_but_not_recommended() -> None:
    scenario = small_scenario(rollout_n=8, pass_rates=BetaPassRates(A, B))
    strategies, rules = [RolloutStrategy.PARTIAL], [StopRuleName.FIRST_COMPLETED]
    candidates = recipe_candidates(scenario, strategies=strategies, stop_rules=rules, concurrency=[2])
    assert [candidate.changes_data for candidate in candidates].count(True) == 2
    rows = sweep(scenario, candidates, steps=6, warmup=2)
    chosen = recommend(rows, max_length_bias=1.0, max_off_policy=1.0, kv_room=1).to_paste
    assert chosen is not None and not chosen.row.candidate.changes_data
    advice = screening_advice(rows, chosen.row, scenario)
    assert advice is not None and "async_dapo.screening.samples=2" in advice
    assert "of a prompt's groups it trains" in advice
    at_second_visit = history_advice(rows, chosen.row, scenario)
    assert at_second_visit is not None and "at that visit it draws" in at_second_visit
    [whole] = [row for row in rows if row.candidate.system.name == "partial first_completed auto"]
    [small] = [row for row in rows if row.candidate.concurrency == 2]
    assert small.mean.step_s > 1.5 * whole.mean.step_s, "a pool of two leaves the engines empty"
    assert screening_advice(rows, small, scenario) == screening_advice(rows, whole, scenario) == advice


@pytest.mark.slow
def test_history_at_the_second_visit_saves_what_the_distribution_of_pass_rates_says() -> None:
    """By enumeration of what the first visit may have shown, for each pass rate."""
    rates = np.random.default_rng(0).beta(A, B, size=4000).tolist()
    by_hand = answers_per_trained_group_by_history(rates, N, 0.1) / answers_per_trained_group(rates, N, NO_SCREENING)
    scenario = small_scenario(rollout_n=N, train_batch_size=64, num_servers=8, pass_rates=BetaPassRates(A, B))
    drains = recipe("drain", stop_rule="drain", rollout_strategy="discard").with_overrides(UNLIMITED)
    history = drains.with_overrides({"async_dapo.selection.by": "history"})
    whole, selected = (simulate(scenario, one, steps=24) for one in (drains, history))
    predicted = _answers_per_valid_group(selected) / _answers_per_valid_group(whole)
    assert by_hand < 0.8 and predicted == pytest.approx(by_hand, rel=0.03)


@pytest.mark.parametrize("rate", [0.02, 0.4, 0.95])
def test_how_often_history_draws_a_prompt_is_what_the_class_that_decides_does(rate: float) -> None:
    n, prompts = 8, 4000
    selection = Selection(by=SelectBy.HISTORY, history_file=None, forgetting=0.5, exploration=0.2, defer_steps=9)
    history = PromptHistory(selection.forgetting)
    earlier = (np.random.default_rng(0).random((prompts, n)) < rate).astype(float)
    skipped = 0
    for i, metrics in enumerate(earlier.tolist()):
        trajectories = [Trajectory(session_id=member) for member in range(n)]
        group = PromptGroup(uid=f"uid-{i}", key=f"{i}", prompt={}, drawn_at_step=1, trajectories=trajectories)
        history.observe(group.key, metrics, [1] * n)
        skipped += selection.skips(group, history)
    assert 1 - skipped / prompts == pytest.approx(drawn_share(rate, n, selection.exploration), abs=0.025)


def test_given_only_a_share_of_valid_groups_then_no_row_claims_to_know_what_screening_saves() -> None:
    strategies, rules = [RolloutStrategy.PARTIAL], [StopRuleName.FIRST_COMPLETED]
    rows = recipe_candidates(small_scenario(), strategies=strategies, stop_rules=rules, concurrency=[])
    assert not any(candidate.changes_data for candidate in rows)


def test_answers_per_trained_group_are_those_of_the_beta_distribution() -> None:
    rates = np.random.default_rng(0).beta(A, B, size=20_000).tolist()
    expected = N / (1 - uniform_share(N))
    assert answers_per_trained_group(rates, N, NO_SCREENING) == pytest.approx(expected, rel=0.02)
