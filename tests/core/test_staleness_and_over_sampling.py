"""Bounded staleness, and the over-sampling target that follows the share of older tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.over_sampling import OverSampling
from recipe.async_dapo.core.staleness import StalenessLimit


@given(max_staleness=st.integers(0, 5), step=st.integers(1, 20), version=st.integers(0, 20))
def test_a_token_is_too_stale_exactly_when_its_staleness_passes_the_limit(max_staleness, step, version) -> None:
    limit = StalenessLimit(max_staleness=max_staleness)
    assert limit.is_too_stale(version, step) == (step - 1 - version > max_staleness)
    assert limit.must_finish(version, step) == limit.is_too_stale(version, step + 1)
    assert (version < limit.oldest_trainable(step)) == limit.is_too_stale(version, step)


@given(step=st.integers(1, 10**6), version=st.integers(0, 10**6))
def test_given_no_limit_then_nothing_is_ever_too_stale(step: int, version: int) -> None:
    limit = StalenessLimit(max_staleness=None)
    assert not limit.is_too_stale(version, step) and not limit.must_finish(version, step)


def test_given_no_tokens_then_there_is_nothing_to_be_stale() -> None:
    limit = StalenessLimit(max_staleness=0)
    assert not limit.is_too_stale(None, 9) and not limit.must_finish(None, 9)


@given(target=st.integers(1, 64), batch_size=st.integers(1, 200))
def test_without_a_cap_the_target_is_held_in_whole_draws(target: int, batch_size: int) -> None:
    held = OverSampling(target_valid_groups=target, batch_size=batch_size).groups_to_hold
    assert held % batch_size == 0 and target <= held < target + batch_size


@given(target=st.integers(1, 64), batch_size=st.integers(1, 200), cap=st.floats(0, 1), shares=st.lists(st.floats(0, 1)))
def test_with_a_cap_the_target_stays_between_the_batch_and_the_configured_value(
    target, batch_size, cap, shares
) -> None:
    over_sampling = OverSampling(target_valid_groups=target, batch_size=batch_size, max_partial_share=cap)
    most = before = over_sampling.groups_to_hold
    for share in shares:
        over_sampling.observe(share)
        now = over_sampling.groups_to_hold
        assert target <= now <= most
        assert now <= before if share > cap else now >= before
        before = now


def test_given_the_cap_passed_again_and_again_then_over_sampling_ends_and_it_recovers_when_the_share_falls() -> None:
    over_sampling = OverSampling(target_valid_groups=8, batch_size=16, max_partial_share=0.3)
    for _ in range(10):
        over_sampling.observe(0.5)
    assert over_sampling.groups_to_hold == 8
    for _ in range(10):
        over_sampling.observe(0.1)
    assert over_sampling.groups_to_hold == 16


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_given_no_cap_when_observed_then_nothing_changes(share: float) -> None:
    over_sampling = OverSampling(target_valid_groups=8, batch_size=16)
    over_sampling.observe(share)
    assert over_sampling.groups_to_hold == 16
