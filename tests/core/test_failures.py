"""When failed trajectories end training: never by accident, and soon where hardly a group can be complete."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.failures import EndedGroups


def ended(*, complete: int, failed: int, scored: int) -> EndedGroups:
    """With so many groups and trajectories, of which each that fails ends its group."""
    return EndedGroups(
        valid=complete, failed={"reward_error": failed}, scored_trajectories=scored, failed_trajectories=failed
    )


@pytest.mark.parametrize(
    ("n", "rate", "target", "seldom", "at_most"),
    [
        (1, 1.0, 8, 29, 30),
        (16, 1.0, 8, 29, 30),
        (64, 1.0, 512, 1023, 1024),
        (16, 0.5, 8, 199, 201),
        (2, 0.5, 8, 2000, None),
        (16, 0.1, 8, 2000, None),
        (16, 0.1, 512, 2000, None),
    ],
)
def test_groups_that_have_ended_when_training_ends(n, rate, target, seldom, at_most) -> None:
    """
    Args:
        seldom: groups after which it goes on.
        at_most: groups after which it has ended; None = it never does.
    """
    for seed in range(20):
        random, complete, failed, scored = Random(seed), 0, 0, 0
        for drawn in range(1, (at_most or seldom) + 1):
            first_failure = next((k for k in range(n) if random.random() < rate), None)
            complete, failed = complete + (first_failure is None), failed + (first_failure is not None)
            scored += n if first_failure is None else first_failure
            is_hopeless = ended(complete=complete, failed=failed, scored=scored).is_hopeless(target)
            assert not (is_hopeless and drawn <= seldom), (seed, drawn)
        assert is_hopeless == (at_most is not None)


def test_given_one_failure_in_every_group_then_training_ends_though_most_trajectories_are_scored() -> None:
    assert not ended(complete=0, failed=199, scored=15 * 199).is_hopeless(8)
    assert ended(complete=0, failed=200, scored=15 * 200).is_hopeless(8)


@given(
    complete=st.integers(0, 20),
    lost=st.integers(0, 1000),
    scored=st.integers(0, 1000),
    target=st.integers(1, 600),
)
def test_more_complete_groups_and_more_scores_never_end_training(complete, lost, scored, target) -> None:
    if not ended(complete=complete, failed=lost, scored=scored).is_hopeless(target):
        assert not ended(complete=complete + 1, failed=lost, scored=scored + 1).is_hopeless(target)
    aside = EndedGroups(valid=complete, set_aside=lost)
    assert aside.are_hardly_any(target) == (lost >= max(200, 2 * target) and complete / max(lost, 1) < 0.01)
