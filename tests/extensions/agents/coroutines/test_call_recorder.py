"""The record of a trajectory with its calls: each finds its own again, in whatever order its loop comes to it."""

import asyncio
import math
from array import array
from collections.abc import Iterator
from contextvars import copy_context

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.trajectory import BrokenRecord, PromptGroup, Trajectory
from recipe.async_dapo.extensions.agents.call_recorder import CallRecorder, _own_turns, call_digest
from recipe.async_dapo.extensions.agents.counts import CallCounts
from recipe.async_dapo.extensions.agents.journal import Call, Journal
from recipe.async_dapo.recording import append_tokens

from ....core.test_recording import take_turn
from ....support.rollout_world import call_runner


@pytest.fixture(autouse=True)
def turns_of_no_task_are_forgotten() -> Iterator[None]:
    """These tests begin turns outside of a task: all that runs later in this process would see them as its own."""
    before = _own_turns.set(0)
    yield
    _own_turns.reset(before)


def recorder(trajectory: Trajectory) -> CallRecorder:
    it: CallRecorder = call_runner().recorder(trajectory, prompt_uid="group", attempt="")
    return it


def test_given_answers_in_another_order_and_log_probs_that_are_no_numbers_then_their_turns_are_put_first() -> None:
    it = recorder(Trajectory(session_id=0))
    it.is_side_by_side = True
    turns = [it.begin_turn([1]) for _ in range(3)]
    for turn, log_prob in zip(turns, (-1.0, math.nan, math.nan), strict=True):
        append_tokens(turn, [5], [log_prob], [(0, 1)])
    answers = [(turn.prompt_digest, [5], turn.rollout_log_probs) for turn in (turns[2], turns[0])]
    asyncio.run(it.put_first(answers))
    assert it.trajectory.turns == [turns[1], turns[0], turns[2]], "of equal turns the first"
    with pytest.raises(BrokenRecord):
        asyncio.run(it.put_first([(turns[0].prompt_digest, [5], [-2.0])]))


def ids(it: CallRecorder, names: list[str]) -> list[str]:
    return [it.begin_call(name, b"arguments")[0].call_id for name in names]


@pytest.mark.parametrize("side_by_side", [False, True])
def test_given_a_call_of_whatever_name_then_it_is_no_score_and_a_score_is(side_by_side) -> None:
    it = recorder(Trajectory(session_id=0))
    it.is_side_by_side = side_by_side
    it.begin_turn([1])
    for name in ("reward", "score", ""):
        assert not it.begin_call(name, b"")[0].is_score
    assert Call(call_id=it.score_id([[1, 2]]), turn=1, arguments=b"").is_score


@given(st.lists(st.sampled_from("abc"), max_size=8), st.randoms())
def test_given_calls_of_one_turn_when_they_overtake_each_other_then_each_finds_its_own(names, random) -> None:
    trajectory = Trajectory(session_id=0)
    first = ids(recorder(trajectory), names)
    assert len(set(first)) == len(names) == len(Journal.of(trajectory).calls)
    again = recorder(trajectory)
    assert sorted(ids(again, random.sample(names, len(names)))) == sorted(first)
    assert len(Journal.of(trajectory).calls) == len(names)


Asked = dict[tuple[int, int], list[str]]  # ids of the calls at each step of each branch

STEPS = 2
SCHEDULE = [branch for branch in range(3) for _ in range(STEPS)]


def branch_by_branch(trajectory: Trajectory, schedule: list[int], calls: list[str]) -> Asked:
    """One run of a loop whose tasks ask side by side, in that order: each step is a turn, and calls behind it."""
    it = recorder(trajectory)
    it.is_side_by_side = True
    tasks, asked = [copy_context() for _ in range(3)], Asked()
    for place, branch in enumerate(schedule):
        step = schedule[:place].count(branch)
        tasks[branch].run(take_turn, it, [branch, step], [branch])
        asked[branch, step] = tasks[branch].run(ids, it, calls)
    return asked


@given(
    schedules=st.tuples(st.permutations(SCHEDULE), st.permutations(SCHEDULE)),
    calls=st.lists(st.sampled_from("ab"), min_size=1, max_size=3),
    stop=st.integers(0, len(SCHEDULE)),
)
def test_given_tasks_side_by_side_in_another_order_then_each_finds_its_own_calls_and_none_is_made_twice(
    schedules, calls, stop
) -> None:
    trajectory, (first, second) = Trajectory(session_id=0), schedules
    before = branch_by_branch(trajectory, first[:stop], calls)
    after = branch_by_branch(trajectory, second, calls)
    assert {place: after[place] for place in before} == before
    assert len(Journal.of(trajectory).calls) == len(SCHEDULE) * len(calls)


def test_given_other_tokens_before_it_then_a_call_is_another_one() -> None:
    made = set()
    for token_ids, arguments in [([1], b"a"), (array("i", [1]), b"a"), ([2], b"a"), ([1], b"b")]:
        it = recorder(Trajectory(session_id=0))
        append_tokens(it.begin_turn([5]), token_ids, [0.0], [(0, 1)])
        made.add(it.begin_call("tool", arguments)[0].call_id)
    assert len(made) == 3, "a list of tokens and an array are the same"


def test_given_a_loop_that_takes_another_way_then_later_calls_are_dropped_and_counted_and_earlier_ones_stay() -> None:
    trajectory = Trajectory(session_id=0)
    it = recorder(trajectory)
    before = ids(it, ["reset"])
    take_turn(it, [1], [7])
    between = ids(it, ["tool"])
    take_turn(it, [2], [8])
    ids(it, ["tool"])
    again = recorder(trajectory)
    take_turn(again, [1], [7])
    take_turn(again, [3], [9])
    assert list(Journal.of(trajectory).calls) == before + between
    assert CallCounts.of(again.counts).diverged == 1 and again.counts.diverged_tok == 1


def test_given_a_trajectory_without_its_tokens_then_its_calls_count_and_weigh_nothing() -> None:
    trajectory = Trajectory(session_id=0)
    call, is_new = recorder(trajectory).begin_call("reset", b"arguments")
    call.result = b"result"
    assert is_new and Journal.of(trajectory).size_bytes == len(b"argumentsresult")
    group = PromptGroup(uid="group", prompt={}, drawn_at_step=1, trajectories=[trajectory])
    whole = group.take_tokens()
    assert group.has_started and Journal.of(trajectory).size_bytes == 0
    call.result = b"a call that goes on writes it"
    assert Journal.of(whole.trajectories[0]).size_bytes == len(b"argumentsresult")
    group.restart()
    assert not group.has_started


def test_given_the_same_bytes_when_they_are_divided_otherwise_then_it_is_another_call() -> None:
    calls = [([], b"abc"), ([b"abc"], b""), ([b"ab"], b"c"), ([b"a"], b"bc"), ([b"a", b"b"], b"c")]
    assert len({call_digest(context, arguments) for context, arguments in calls}) == len(calls)
    assert call_digest([b"a"], b"b") == call_digest((b"a",), b"b")
