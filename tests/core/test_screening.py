"""Two-stage groups: what may run, what is held back, what is given up; nothing changes when screening is off."""

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.outcome import GroupOutcome, Verdict, is_certain
from recipe.async_dapo.core.over_sampling import OverSampling
from recipe.async_dapo.core.screening import NO_SCREENING, Screened, Screening
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory, Turn

METRICS = st.lists(st.sampled_from([0.0, 1.0]), min_size=3, max_size=8)
ALL_SCREENED = Screening(samples=2, keep_share=0.0)


def group_of(n: int, uid: str = "uid") -> PromptGroup:
    return PromptGroup(uid=uid, prompt={}, drawn_at_step=1, trajectories=[Trajectory(session_id=i) for i in range(n)])


def finish(group: PromptGroup, trajectory: Trajectory, metrics: list[float]) -> None:
    """As `GroupRollout` does when a trajectory has been scored."""
    trajectory.finish(True)
    done = is_certain(metrics[one.session_id] for one in group.trajectories if one.is_finished)
    group.is_certain |= done and bool(group.unfinished)


@given(metrics=METRICS, random=st.randoms(use_true_random=True), keep_share=st.sampled_from([0.0, 0.5, 1.0]))
def test_given_any_order_of_endings_and_interruptions_then_a_group_runs_in_two_stages_and_ends_as_it_should(
    metrics, random, keep_share
) -> None:
    n = len(metrics)
    screening = Screening(samples=random.randint(2, n - 1), keep_share=keep_share)
    group = group_of(n, uid=f"uid-{random.randint(0, 99)}")
    started: set[int] = set()
    while runnable := screening.to_run(group):
        held_back = screening.held_back(group)
        assert len(runnable) + len(held_back) + sum(one.is_finished for one in group.trajectories) == n
        assert not started & {one.session_id for one in held_back}, "what has begun is held back"
        trajectory = random.choice(runnable)
        started.add(trajectory.session_id)
        trajectory.turns = trajectory.turns or [Turn(prompt_digest=b"", prompt_len_tok=1)]
        group = deepcopy(group)  # a checkpoint, or another worker
        if random.random() < 0.5:
            finish(group, group.trajectories[trajectory.session_id], metrics)
    differ = is_certain(metrics[: screening.samples])
    if differ or screening.keeps(group.uid):
        assert not group.unfinished and not screening.is_screened_out(group)
        assert screening.is_kept(group.uid, metrics) == (screening.keeps(group.uid) and not differ)
    else:
        assert screening.is_screened_out(group) and len(started) == screening.samples
        assert not screening.is_kept(group.uid, metrics)


@given(metrics=METRICS, finished=st.sets(st.integers(0, 7)))
def test_given_no_screening_then_whatever_is_unfinished_runs_and_nothing_is_held_back(metrics, finished) -> None:
    group = group_of(len(metrics))
    for i in finished & set(range(len(metrics))):
        finish(group, group.trajectories[i], metrics)
    assert NO_SCREENING.to_run(group) == group.unfinished and NO_SCREENING.held_back(group) == []
    assert not NO_SCREENING.is_screened_out(group) and not NO_SCREENING.is_kept("uid", metrics)
    assert NO_SCREENING.cost(len(metrics)) == 1.0


def test_given_a_group_that_was_begun_whole_when_screening_is_turned_on_then_it_goes_on_whole() -> None:
    group = group_of(4)
    group.trajectories[3].turns = [Turn(prompt_digest=b"", prompt_len_tok=1)]
    assert len(ALL_SCREENED.to_run(group)) == 4 and ALL_SCREENED.held_back(group) == []


def test_given_a_group_that_starts_again_then_it_is_screened_again() -> None:
    group = group_of(4)
    for trajectory, metric in zip(group.trajectories[:2], (0.0, 1.0), strict=True):
        finish(group, trajectory, [0.0, 1.0, metric, metric])
    assert len(ALL_SCREENED.to_run(group)) == 2 and not ALL_SCREENED.held_back(group)
    group.restart()
    assert len(ALL_SCREENED.to_run(group)) == 2 and len(ALL_SCREENED.held_back(group)) == 2


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
def test_the_kept_share_is_drawn_by_uid_and_always_the_same(share: float) -> None:
    screening = Screening(samples=2, keep_share=share)
    kept = [screening.keeps(f"uid-{i}") for i in range(4000)]
    assert sum(kept) / 4000 == pytest.approx(share, abs=0.02)
    assert kept == [screening.keeps(f"uid-{i}") for i in range(4000)]


def test_given_screened_groups_then_they_count_as_not_valid_and_as_the_few_trajectories_that_they_are() -> None:
    over_sampling = OverSampling(target_valid_groups=8, batch_size=None, screened_cost=0.25)
    over_sampling.observe(0.0, valid=20, judged=30, screened=40)
    assert over_sampling.valid_share == pytest.approx(20 / 70)
    assert over_sampling.trained_share == pytest.approx(20 / 40)
    again = OverSampling(target_valid_groups=8, batch_size=None, screened_cost=0.25)
    again.restore(over_sampling.state())
    assert again == over_sampling


def test_given_outcomes_then_what_screening_saved_is_estimated_by_the_samples_it_had() -> None:
    outcomes = [
        GroupOutcome(prompt_uid="a", verdict=Verdict.SCREENED, response_lens_tok=(10, 30)),
        GroupOutcome(prompt_uid="b", verdict=Verdict.FILTERED, response_lens_tok=(9,) * 8, is_kept=True),
        GroupOutcome(prompt_uid="c", verdict=Verdict.VALID, response_lens_tok=(9,) * 8, is_kept=True),
        GroupOutcome(prompt_uid="d", verdict=Verdict.VALID, response_lens_tok=(9,) * 8),
    ]
    assert Screened.of(outcomes, 8) == Screened(groups=1, generated_tok=40, saved_tok=120.0, kept=2, kept_valid=1)


def test_given_a_screened_group_then_its_report_leaves_out_what_never_started() -> None:
    group = group_of(4)
    for trajectory in group.trajectories[:2]:
        finish(group, trajectory, [1.0] * 4)
    assert GroupOutcome.of(group, Verdict.SCREENED).response_lens_tok == (0, 0)
    assert len(GroupOutcome.of(group, Verdict.FAILED).response_lens_tok) == 4
