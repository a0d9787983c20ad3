"""Two-stage groups: what may run, what is held back, what is given up; nothing changes when screening is off."""

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.outcome import GroupOutcome, Verdict, is_certain, judge_group
from recipe.async_dapo.core.over_sampling import OverSampling
from recipe.async_dapo.core.round import Round, RoundSpec, WaitingGroup
from recipe.async_dapo.core.screening import NO_SCREENING, Screened, Screening
from recipe.async_dapo.core.stop_rules import StopRuleName
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


@given(metrics=METRICS, random=st.randoms(use_true_random=False), keep_share=st.sampled_from([0.0, 0.5, 1.0]))
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


@given(metrics=METRICS)
def test_a_trained_group_is_one_that_would_have_been_trained_without_screening(metrics) -> None:
    group = group_of(len(metrics))
    while runnable := ALL_SCREENED.to_run(group):
        finish(group, runnable[0], metrics)
    if not ALL_SCREENED.is_screened_out(group):
        assert judge_group(metrics) is Verdict.VALID


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


SIZES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=6)


@given(sizes=SIZES, pool_size=st.none() | st.integers(1, 6), random=st.randoms(use_true_random=False))
def test_given_screened_groups_in_a_round_then_places_count_what_really_runs(sizes, pool_size, random) -> None:
    spec = RoundSpec(
        round_id="round",
        stop_rule=StopRuleName.FIFO,
        target_valid_groups=100,
        carried_valid_groups=0,
        num_workers=1,
        drains=False,
        pool_size=pool_size,
    )
    opened, running = Round(spec), dict[str, int]()
    held_back = {f"group-{i}": later for i, (_, later) in enumerate(sizes)}
    opened.add_groups(
        [
            WaitingGroup(prompt_uid=f"group-{i}", unfinished=first, held_back=later)
            for i, (first, later) in enumerate(sizes)
        ]
    )
    assert opened.at_hand.open == len(sizes)
    for _ in range(40):
        event = random.choice(["take", "end", "certain", "screened"])
        if event == "take":
            has_place = pool_size is None or sum(running.values()) < pool_size
            uid = opened.take(0)
            assert (uid is not None) == (has_place and opened.num_waiting + (uid is not None) > 0)
            if uid is not None:
                running[uid] = sizes[int(uid.removeprefix("group-"))][0]
        elif running:
            uid = random.choice(sorted(running))
            if event == "end":
                opened.end_trajectory(uid)
                running[uid] = max(0, running[uid] - 1)
            elif event == "certain":
                opened.mark_certain(uid)
                running[uid] += held_back.pop(uid, 0)
            else:
                opened.report(GroupOutcome(prompt_uid=uid, verdict=Verdict.SCREENED))
                del running[uid]
                assert opened.count_ended().screened >= 1


def test_given_screened_groups_then_they_count_as_not_valid_and_as_the_few_trajectories_that_they_are() -> None:
    over_sampling = OverSampling(target_valid_groups=8, batch_size=None, screened_cost=0.25)
    over_sampling.observe(0.0, valid=20, judged=30, screened=40)
    assert over_sampling.valid_share == pytest.approx(20 / 70)
    assert over_sampling.trained_share == pytest.approx(20 / 40)
    again = OverSampling(target_valid_groups=8, batch_size=None, screened_cost=0.25)
    again.restore(over_sampling.state())
    assert again == over_sampling


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=5))
def test_given_no_screening_then_the_two_shares_are_the_same(steps) -> None:
    over_sampling = OverSampling(target_valid_groups=8, batch_size=None, screened_cost=NO_SCREENING.cost(16))
    for valid, filtered in steps:
        over_sampling.observe(0.0, valid=valid, judged=valid + filtered)
    assert over_sampling.trained_share == over_sampling.valid_share


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


EVENTS = st.lists(st.tuples(st.sampled_from(["take", "end", "certain", "report"]), st.integers(0, 9)), max_size=60)


@given(
    rule=st.sampled_from(StopRuleName),
    target=st.integers(1, 3),
    carried=st.integers(0, 1),
    pool_size=st.none() | st.integers(1, 9),
    verdicts=st.lists(st.sampled_from([Verdict.VALID, Verdict.FILTERED, Verdict.FAILED]), min_size=6, max_size=6),
    events=EVENTS,
)
def test_given_no_screening_then_early_verdicts_change_neither_the_stop_nor_what_starts(
    rule, target, carried, pool_size, verdicts, events
) -> None:
    spec = RoundSpec(
        round_id="round",
        stop_rule=rule,
        target_valid_groups=target,
        carried_valid_groups=carried,
        num_workers=1,
        drains=rule is StopRuleName.DRAIN,
        pool_size=pool_size,
    )
    told, untold = Round(spec), Round(spec)
    for one in (told, untold):
        one.add_groups([WaitingGroup(prompt_uid=f"group-{i}", unfinished=3) for i in range(len(verdicts))])
    running: list[str] = []
    for event, pick in events:
        if event == "take":
            taken = told.take(0)
            assert taken == untold.take(0)
            running += [] if taken is None else [taken]
        elif running:
            uid = running[pick % len(running)]
            if event == "certain":
                told.mark_certain(uid)
            for one in (told, untold):
                if event == "end":
                    one.end_trajectory(uid)
                elif event == "report":
                    one.report(GroupOutcome(prompt_uid=uid, verdict=verdicts[int(uid.removeprefix("group-"))]))
            if event == "report":
                running.remove(uid)
        assert told.stop_reason == untold.stop_reason and told.num_waiting == untold.num_waiting
