"""When failed trajectories end training: never by accident, and soon where hardly a group can be complete."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.outcome import (
    FALSE_ALARM,
    TOLERABLE_COMPLETE_SHARE,
    EndedGroups,
    failure_rate,
    log_likelihood_ratio,
)


def groups_until_hopeless(random: Random, *, n: int, rate: float, at_most: int) -> int | None:
    """Draw groups of which each trajectory fails at that rate, until the step is given up; None = it is not."""
    valid = failed = scored = 0
    for drawn in range(1, at_most + 1):
        first_failure = next((k for k in range(n) if random.random() < rate), None)
        valid += first_failure is None
        failed += first_failure is not None
        scored += n if first_failure is None else first_failure
        ended = EndedGroups(
            valid=valid, failed={"reward_error": failed}, scored_trajectories=scored, failed_trajectories=failed
        )
        if ended.is_hopeless(n):
            return drawn
    return None


def test_given_a_tenth_of_the_rewards_fails_when_groups_are_of_16_then_training_goes_on() -> None:
    """81 % of the groups fail; at the start often all of them."""
    for seed in range(200):
        assert groups_until_hopeless(Random(seed), n=16, rate=0.1, at_most=500) is None, seed


@pytest.mark.parametrize(
    ("n", "rate", "groups"), [(16, 1.0, 15), (16, 0.5, 60), (4, 1.0, 40), (64, 1.0, 15), (1, 1.0, 140), (2, 1.0, 50)]
)
def test_given_rewards_that_fail_for_most_groups_then_training_ends_soon(n: int, rate: float, groups: int) -> None:
    for seed in range(20):
        found = groups_until_hopeless(Random(seed), n=n, rate=rate, at_most=groups)
        assert found is not None, (seed, found)


def test_given_one_failure_in_every_group_then_training_ends_though_most_trajectories_are_scored() -> None:
    for count in (100, 140):
        ended = EndedGroups(failed={"reward_timeout": count}, scored_trajectories=15 * count, failed_trajectories=count)
        assert ended.is_hopeless(16) == (count == 140)


@given(n=st.integers(1, 256), count=st.integers(1, 60))
def test_at_the_tolerable_rate_the_likelihood_ratio_is_one_on_average_so_that_false_alarms_are_bounded(
    n: int, count: int
) -> None:
    """Ville: a non-negative martingale that begins at 1 ever reaches 1 / a with a probability of at most a."""
    rate = failure_rate(TOLERABLE_COMPLETE_SHARE, n)
    average = sum(
        math.comb(count, failed)
        * rate**failed
        * (1 - rate) ** (count - failed)
        * math.exp(log_likelihood_ratio(failed=failed, scored=count - failed, n=n))
        for failed in range(count + 1)
    )
    assert average == pytest.approx(1.0)


@given(n=st.integers(1, 256), failed=st.integers(0, 1000), scored=st.integers(0, 1000))
def test_more_failures_are_worse_and_more_scores_are_better(n: int, failed: int, scored: int) -> None:
    here = log_likelihood_ratio(failed=failed, scored=scored, n=n)
    assert log_likelihood_ratio(failed=failed + 1, scored=scored, n=n) > here
    assert log_likelihood_ratio(failed=failed, scored=scored + 1, n=n) < here


def test_few_groups_are_never_enough_to_give_up() -> None:
    assert FALSE_ALARM <= 1e-6
    for n in (1, 2, 4, 16, 64, 256):
        assert not EndedGroups(failed={"reward_error": 8}, failed_trajectories=8).is_hopeless(n)
