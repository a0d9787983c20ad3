"""What is known of a group before all of its trajectories have ended, and how many groups are held because of it."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.mix import Mix
from recipe.async_dapo.core.outcome import SAME_METRIC, GroupOutcome, Verdict, is_certain, judge_group
from recipe.async_dapo.core.over_sampling import LEAST_VALID_SHARE, AvailableGroups, OverSampling, RoundSize
from recipe.async_dapo.core.partial_share import CappedOverSampling
from recipe.async_dapo.core.staleness import StalenessLimit


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=16), st.integers(1, 16))
def test_a_group_that_is_certain_is_valid_whatever_follows(metrics, judged):
    early = is_certain(metrics[:judged])
    if early:
        assert judge_group(metrics) is Verdict.VALID
    if judged >= len(metrics):
        assert early == (judge_group(metrics) is Verdict.VALID)


def auto(target: int = 64, **options) -> OverSampling:
    return OverSampling(target_valid_groups=target, batch_size=None, **options)


def capped(target: int, batch_size: int | None, cap: float) -> OverSampling:
    return CappedOverSampling(target_valid_groups=target, batch_size=batch_size, max_partial_share=cap)


def held_of(over_sampling: OverSampling) -> int:
    return Mix(over_sampling).groups_to_hold


def test_given_nothing_is_known_then_twice_the_batch_is_held_and_less_where_tokens_would_be_lost():
    assert held_of(auto()) == 128
    assert held_of(auto(keeps_tokens=False)) == 77


@given(
    target=st.integers(1, 500),
    judged=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=20),
    certain=st.integers(0, 1000),
    still_open=st.integers(0, 1000),
    cap=st.none() | st.floats(0, 1),
)
def test_given_any_history_then_what_is_drawn_brings_the_expected_groups_to_the_target_and_no_further(
    target, judged, certain, still_open, cap
):
    over_sampling = auto(target) if cap is None else capped(target, None, cap)
    for valid, filtered in judged:
        over_sampling.observe(0.5, valid=valid, judged=valid + filtered)
    share = over_sampling.valid_share
    assert LEAST_VALID_SHARE <= share <= 1
    available = AvailableGroups(certain=certain, open=still_open)
    missing = over_sampling.missing(available)
    expected = AvailableGroups(certain=certain, open=still_open + missing).expected_valid(share)
    assert expected >= target - 1e-6, "fewer than a batch"
    if missing:
        assert expected - share < 2 * target + 1e-6, "more than is held"
        with_one_more = AvailableGroups(certain=certain + 1, open=still_open)
        assert over_sampling.missing(with_one_more) < missing or share * missing < 1
    assert over_sampling.groups_to_draw(available) >= 1


def test_given_half_of_the_groups_valid_then_twice_as_many_are_held_and_certain_ones_count_whole():
    over_sampling = auto()
    over_sampling.observe(0.0, valid=64, judged=128)
    assert held_of(over_sampling) == 256
    assert over_sampling.missing(AvailableGroups(certain=64, open=0)) == 128
    assert over_sampling.missing(AvailableGroups(certain=0, open=64)) == 192


def outcome(*lens_tok: int, verdict: Verdict = Verdict.VALID) -> GroupOutcome:
    return GroupOutcome(prompt_uid="a", verdict=verdict, response_lens_tok=lens_tok)


def size(max_staleness: int | None, **pool: Any) -> RoundSize:
    limit = StalenessLimit(max_staleness=max_staleness)
    return RoundSize(trajectories_per_batch=100, longest_tok=1000, staleness=limit, **pool)


def test_given_a_limit_on_staleness_then_the_longest_response_that_starts_now_ends_in_time():
    rounds = size(4)
    rounds.observe([outcome(250, 250), outcome(900, verdict=Verdict.FAILED)])
    assert rounds.staleness_bound(1.0) == 100  # 4 x 250 / 1000 = 1 round in flight for a mean one
    assert rounds.most_unfinished(0.5) == 200 and rounds.pool_size(60) == 60
    assert size(0).most_unfinished(1.0) == 100, "what one step needs is always allowed"
    assert size(None).most_unfinished(1.0) is None


@pytest.mark.parametrize(("named", "most"), [(60, 100), (300, 300), (None, None)])
def test_given_a_pool_that_does_not_size_itself_then_it_is_what_was_named_and_all_of_it_may_be_unfinished(named, most):
    rounds = size(0, named=named, sizes_itself=False)
    assert (rounds.pool_size(5000), rounds.most_unfinished(1.0)) == (named, most)


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.integers(-1000, 1000).map(lambda tenths: tenths / 10) | st.booleans(), min_size=1))
def test_valid_exactly_when_two_metrics_differ(metrics: list[float]) -> None:
    assert (judge_group(metrics) is Verdict.VALID) == (len(set(metrics)) > 1)


@given(st.lists(finite, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_given_sums_that_differ_only_by_their_order_then_the_group_is_not_valid(parts, random) -> None:
    parts = [part / 1e300 for part in parts]  # no sum overflows
    size = max(1.0, abs(sum(parts)), sum(map(abs, parts)) * SAME_METRIC)  # where they cancel out, noise is all there is
    metrics = [sum(random.sample(parts, len(parts))) / size for _ in range(8)]
    assert judge_group(metrics) is Verdict.FILTERED


@given(st.lists(finite, min_size=1, max_size=4), st.lists(finite, max_size=4))
def test_a_group_of_any_metrics_never_turns_from_certain_to_filtered(known, more) -> None:
    assert is_certain(known + more) >= is_certain(known)


@given(st.lists(finite, max_size=4), st.sampled_from([math.nan, math.inf, -math.inf]), st.lists(finite, max_size=4))
def test_given_a_metric_that_is_no_finite_number_or_none_at_all_then_it_is_refused(before, bad, after) -> None:
    for metrics in ([*before, bad, *after], []):
        with pytest.raises(ValueError, match="finite"):
            judge_group(metrics)


@given(max_staleness=st.none() | st.integers(0, 5), step=st.integers(1, 20), version=st.integers(0, 20))
def test_a_token_is_too_stale_exactly_when_its_staleness_passes_the_limit(max_staleness, step, version) -> None:
    limit = StalenessLimit(max_staleness=max_staleness)
    is_too_stale = max_staleness is not None and step - 1 - version > max_staleness
    assert limit.is_too_stale(version, step) == is_too_stale
    assert limit.must_finish(version, step) == limit.is_too_stale(version, step + 1)
    assert (version < limit.oldest_trainable(step)) == limit.is_too_stale(version, step)
    assert not limit.is_too_stale(None, step) and not limit.must_finish(None, step), "no token is too old"


@given(target=st.integers(1, 64), batch_size=st.integers(1, 200))
def test_without_a_cap_the_target_is_held_in_whole_draws_whatever_is_observed(target: int, batch_size: int) -> None:
    over_sampling = OverSampling(target_valid_groups=target, batch_size=batch_size)
    held = held_of(over_sampling)
    assert held % batch_size == 0 and target <= held < target + batch_size
    over_sampling.observe(1.0, valid=1, judged=4)
    assert held_of(over_sampling) == held
    assert over_sampling.valid_share == 0.25, "seen all the same"


@given(target=st.integers(1, 64), batch_size=st.integers(1, 200), cap=st.floats(0, 1), shares=st.lists(st.floats(0, 1)))
def test_with_a_cap_the_target_stays_between_the_batch_and_the_configured_value(target, batch_size, cap, shares):
    over_sampling = capped(target, batch_size, cap)
    most = before = held_of(over_sampling)
    for share in shares:
        over_sampling.observe(share)
        now = held_of(over_sampling)
        assert target <= now <= most
        assert now <= before if share > cap else now >= before
        before = now


def test_given_the_cap_passed_again_and_again_then_over_sampling_ends_and_it_recovers_when_the_share_falls() -> None:
    over_sampling = capped(8, 16, 0.3)
    for _ in range(10):
        over_sampling.observe(0.5)
    assert held_of(over_sampling) == 8
    for _ in range(10):
        over_sampling.observe(0.1)
    assert held_of(over_sampling) == 16
