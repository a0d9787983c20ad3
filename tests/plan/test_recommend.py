"""What is recommended: two choices, judged in the steady state, and what to be wary of."""

from dataclasses import replace

import pytest

from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo_lab.plan.candidates import Candidate, recipe_candidates
from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.measures import StepMeasure
from recipe.async_dapo_lab.plan.recommend import at_equal_share, recommend
from recipe.async_dapo_lab.plan.report import in_words
from recipe.async_dapo_lab.plan.sweep import Row, simulate
from recipe.async_dapo_lab.plan.systems import recipe, verl_sync

from ..support.plan_settings import mean_step, small_scenario


@pytest.fixture(scope="module")
def mean() -> StepMeasure:
    return mean_step(small_scenario(), verl_sync(groups=8), steps=2, warmup=0)


@pytest.fixture
def row(mean):
    def make(
        name: str,
        speed_up: float,
        off_policy: float,
        *,
        staleness: float = 0.5,
        waste: float = 0.0,
        withheld: float = 0.0,
        **kwargs,
    ) -> Row:
        strategy, _, rest = name.partition(" ")
        candidate = Candidate(
            system=recipe(name, rollout_strategy=strategy), strategy=strategy, stop_rule=rest, concurrency=None
        )
        trained = 1000
        measured = replace(
            mean,
            trained_tok=trained,
            off_policy_tok=round(off_policy * trained),
            staleness_tok=round(staleness * trained),
            staleness_max=2,
            wasted_tok=round(waste / (1 - waste) * trained),
            withheld_tok=round(withheld * trained),
        )
        natural = measured.trained_len_tok / kwargs.pop("bias", 1.0)
        return Row(
            candidate=replace(candidate, **kwargs),
            mean=measured,
            natural_len_tok=natural,
            bound_s=1.0,
            speed_up=speed_up,
        )

    return make


def choose(*rows: Row):
    return recommend(rows)


def test_each_choice_is_the_fastest_within_its_limits(row):
    rows = [
        row("verl sync", 1.0, 0.0, is_baseline=True),
        row("discard fifo", 1.2, 0.1, waste=0.12),
        row("partial first_completed", 1.4, 0.4),
        row("partial fifo", 1.6, 0.99, staleness=3.0),
    ]
    advice = choose(*rows)
    assert advice.choices == {"balanced": rows[2], "fresh": rows[1]} and advice.pasted == "balanced"
    assert not advice.warnings


def test_rows_within_the_noise_are_equally_fast_and_the_fresher_one_is_taken(row):
    rows = [
        row("verl sync", 1.0, 0.0, is_baseline=True),
        row("partial fifo", 1.41, 0.45),
        row("partial fifo 64", 1.40, 0.2, concurrency=64),
        row("discard fifo", 1.39, 0.3, waste=0.1),
    ]
    assert choose(*rows).choices["balanced"] is rows[2]


def test_a_baseline_that_wins_is_named(row):
    rows = [
        row("verl sync", 1.0, 0.0, is_baseline=True),
        row("partial APRIL", 1.5, 0.2, is_baseline=True),
        row("partial first_completed", 1.2, 0.3),
    ]
    [warning] = choose(*rows).warnings
    assert warning.startswith("a baseline wins: `partial APRIL` is 25% faster than what is recommended")
    assert "off-policy share of 0.20" in warning


COLOCATE = "verl colocate_async"


def test_given_one_of_verls_modes_that_is_as_fast_and_as_fresh_then_the_advice_is_to_stay_with_it(row):
    """8 x H200, B=64, n=16: 758 s against 698, at an off-policy share below it."""
    rows = [
        row("verl sync", 1.0, 0.0, is_baseline=True),
        row(COLOCATE, 1.2, 0.3, is_baseline=True),
        row("partial first_completed", 1.1, 0.5),
    ]
    advice = choose(*rows)
    assert advice.pasted is None and advice.verls_own is rows[1]
    assert advice.compared == "no row of this recipe has verl colocate_async's off-policy share of 0.30 or less"
    words = in_words(advice)
    assert "Stay with verl's own mode: trainer.v1.trainer_mode=colocate_async" in words and "Recommended" not in words


def test_given_more_speed_for_more_old_tokens_then_both_are_compared_at_equal_share_first(row):
    rows = [
        row("verl sync", 1.0, 0.0, is_baseline=True),
        row(COLOCATE, 1.2, 0.3, is_baseline=True),
        row("partial first_completed", 1.4, 0.8, staleness=0.9),
        row("partial first_completed 64", 1.1, 0.3, concurrency=64),
    ]
    advice = choose(*rows)
    assert advice.pasted == "balanced" and advice.choices == {"balanced": rows[2], "fresh": rows[3]}
    words = in_words(advice)
    assert words.startswith("at verl colocate_async's off-policy share of 0.30, no row of this recipe is faster")
    faster = row("partial first_completed 64", 1.3, 0.31, concurrency=64)
    compared = choose(*rows[:3], faster).compared
    assert compared.startswith("at verl colocate_async's off-policy share of 0.30, `partial first_completed 64` is 8%")


@pytest.mark.parametrize(("colocate", "default", "caps"), [(0.64, 0.71, [0.74]), (0.64, 0.66, []), (0.92, 0.97, [])])
def test_a_default_that_is_less_fresh_than_verls_mode_is_tried_at_its_share_too(row, colocate, default, caps):
    rows = [row(COLOCATE, 1.2, colocate, is_baseline=True), row("partial first_completed", 1.3, default)]
    tried = at_equal_share(rows)
    assert [one.system.options(small_scenario()).max_partial_share for one in tried] == caps
    assert not any(one.is_default for one in tried)
    assert not at_equal_share(rows[1:]) and not at_equal_share(rows[:1]), "there is nothing to compare"


def test_the_row_called_the_default_has_the_options_of_the_yaml():
    scenario = small_scenario()
    everything = recipe_candidates(scenario, strategies=list(RolloutStrategy), pool_sizes=[16])
    [default] = [one for one in everything if one.is_default]
    assert default.system.options(scenario) == recipe("as it is").options(scenario)


def short_tailed(**changes):
    """Many prompts, few answers each, of nearly equal length: the KV cache holds many batches."""
    lengths = LogNormalLengths(median_tok=550, sigma=0.4, correlation=0.5)
    return small_scenario(train_batch_size=64, rollout_n=2, lengths=lengths, **changes)


@pytest.mark.slow
def test_a_pool_of_many_batches_is_judged_in_its_steady_state():
    """In its first steps it trains on short answers: in the mean over those, its lengths would seem biased."""
    scenario = short_tailed()
    candidates = recipe_candidates(scenario, strategies=[RolloutStrategy.PARTIAL], pool_sizes=[512])
    candidate = next(one for one in candidates if one.concurrency == 512 and one.stop_rule == "first_completed")
    mean, natural_tok = simulate(scenario, candidate, steps=24, warmup=None)
    assert mean.trained_len_tok / natural_tok == pytest.approx(1.0, abs=0.03)
    at_first, natural_tok = simulate(scenario, candidate, steps=2, warmup=0)
    assert at_first.trained_len_tok / natural_tok < 0.9
