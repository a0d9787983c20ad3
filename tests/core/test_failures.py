"""When failed trajectories end training: never by accident, and soon where hardly a group can be complete."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.outcome import EndedGroups


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


@pytest.mark.parametrize(("complete_share", "scored_of_failed"), [(0.1, 1), (0.5, 0)])
def test_a_step_that_can_be_trained_is_ended_by_chance_once_in_a_million_at_most(
    complete_share: float, scored_of_failed: int
) -> None:
    """Exactly, over all orders in which 450 groups end, with so many scored trajectories in each that fails."""
    going_on, alarms = {0: 1.0}, 0.0  # by complete groups
    for drawn in range(1, 451):
        after: dict[int, float] = {}
        for complete, chance in going_on.items():
            for now, share in ((complete, 1 - complete_share), (complete + 1, complete_share)):
                failed = drawn - now
                if ended(complete=now, failed=failed, scored=now + scored_of_failed * failed).is_hopeless(8):
                    alarms += share * chance
                else:
                    after[now] = after.get(now, 0.0) + share * chance
        going_on = {complete: chance for complete, chance in after.items() if chance > 1e-15}
    assert alarms <= 1e-6


@pytest.mark.parametrize("groups", [64, 256, 1024])
def test_given_groups_that_begin_together_when_those_that_fail_end_first_then_training_goes_on(groups: int) -> None:
    """One of ten trajectories fails. A group ends with its first failure, or else with its longest response."""
    for seed in range(5):
        random, endings = Random(seed), []
        for _ in range(groups):
            typical = random.gauss(0.0, 0.6)
            ends = [(random.lognormvariate(typical, 0.6), random.random() < 0.1) for _ in range(16)]
            first = min((time for time, fails in ends if fails), default=None)
            scored = sum(first is None or time < first for time, _ in ends)
            endings.append((first or max(ends)[0], first is None, scored))
        complete = all_scored = 0
        for number, (_, is_complete, scored) in enumerate(sorted(endings), 1):
            complete, all_scored = complete + is_complete, all_scored + scored
            now = ended(complete=complete, failed=number - complete, scored=all_scored)
            assert not now.is_hopeless(groups // 2), (seed, number)


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
