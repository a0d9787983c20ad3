"""Recording: segments are the tokens, whatever the interruptions; replay; divergence; the journal of calls."""

import asyncio
import math
import pickle
from array import array
from contextvars import copy_context
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.calls import (
    SampledTokens,
    TrajectoryRecorder,
    append_routes,
    append_tokens,
    array_of,
    cut,
    prompt_digest,
)
from recipe.async_dapo.core.trajectory import (
    BrokenRecord,
    PromptGroup,
    Segment,
    Suspension,
    Trajectory,
    Turn,
)

tokens = st.integers(0, 2**31 - 1)
log_probs = st.floats(-100, 0, width=32)
chunks = st.lists(st.lists(st.tuples(tokens, log_probs, st.integers(0, 3)), max_size=6), max_size=6)


def stamps_of(versions: list[int]) -> list[tuple[int, int]]:
    return [(version, len(list(same))) for version, same in groupby(versions)]


@given(chunks)
def test_given_any_requests_when_recorded_then_segments_concatenate_to_exactly_what_was_generated(chunks) -> None:
    turn = Turn(prompt_digest=b"", prompt_len_tok=1)
    for chunk in chunks:
        append_tokens(turn, [t for t, _, _ in chunk], [p for _, p, _ in chunk], stamps_of([v for _, _, v in chunk]))
    everything = [entry for chunk in chunks for entry in chunk]
    assert turn.raw_response_ids == [token for token, _, _ in everything]
    assert turn.rollout_log_probs == [log_prob for _, log_prob, _ in everything]
    stamps = [(segment.policy_version, len(segment.token_ids)) for segment in turn.segments]
    assert stamps == stamps_of([version for _, _, version in everything])
    assert turn.generated_tok == len(everything)
    bytes_of_a_token = {segment.token_ids.itemsize + segment.rollout_log_probs.itemsize for segment in turn.segments}
    assert bytes_of_a_token <= {8}, "8,192 unfinished trajectories of 16K tokens are to fit into 2 GB"


@pytest.mark.parametrize(
    ("token_ids", "probs", "stamps"),
    [([1, 2], [0.0, 0.0], [(0, 1)]), ([1, 2], [0.0], [(0, 2)]), ([1], [0.0], [(0, 2)]), ([1], [], [])],
)
def test_given_stamps_or_log_probs_that_do_not_cover_the_tokens_then_it_is_an_error(token_ids, probs, stamps) -> None:
    with pytest.raises(BrokenRecord):
        append_tokens(Turn(prompt_digest=b"", prompt_len_tok=1), token_ids, probs, stamps)


def recorder(trajectory: Trajectory) -> TrajectoryRecorder:
    return TrajectoryRecorder(trajectory=trajectory, prompt_uid="group")


def take_turn(it: TrajectoryRecorder, prompt: list[int], token_ids: list[int]) -> None:
    """Generate these tokens, if the turn is not recorded."""
    turn = it.begin_turn(prompt)
    if turn.finish_reason is None:
        append_tokens(turn, token_ids, [-1.0] * len(token_ids), [(0, len(token_ids))] if token_ids else [])
        turn.finish_reason = "stop"


def play(trajectory: Trajectory, prompts: list[list[int]], generated_tok: list[int]) -> TrajectoryRecorder:
    """One run of an agent loop that generates `generated_tok[k]` tokens in turn k, if they are not recorded."""
    it = recorder(trajectory)
    for prompt, count in zip(prompts, generated_tok, strict=True):
        take_turn(it, prompt, [7] * count)
    return it


prompts = st.lists(st.lists(tokens, min_size=1, max_size=3), min_size=1, max_size=4)


@given(prompts=prompts, data=st.data())
def test_given_an_interrupted_loop_when_run_again_then_recorded_turns_are_replayed_and_the_rest_is_new(prompts, data):
    counts = [data.draw(st.integers(0, 4)) for _ in prompts]
    trajectory = Trajectory(session_id=0)
    interrupted_after = data.draw(st.integers(0, len(prompts)))
    play(trajectory, prompts[:interrupted_after], counts[:interrupted_after])
    before = [turn.raw_response_ids for turn in trajectory.turns]
    trajectory = pickle.loads(pickle.dumps(trajectory))
    it = play(trajectory, prompts, [count + 10 for count in counts])
    lens = [turn.generated_tok for turn in trajectory.turns]
    assert [turn.raw_response_ids for turn in trajectory.turns][:interrupted_after] == before
    assert lens == counts[:interrupted_after] + [count + 10 for count in counts[interrupted_after:]]
    assert it.counts.diverged_tok == 0


@given(prompts=prompts, data=st.data())
def test_given_a_loop_that_asks_something_else_when_run_again_then_the_record_ends_there_and_the_loss_is_counted(
    prompts, data
) -> None:
    counts = [data.draw(st.integers(0, 4)) for _ in prompts]
    trajectory = Trajectory(session_id=0)
    play(trajectory, prompts, counts)
    parted_at = data.draw(st.integers(0, len(prompts) - 1))
    other = [*prompts[:parted_at], [*prompts[parted_at], 1]]
    it = play(trajectory, other, [*counts[:parted_at], 9])
    assert [turn.generated_tok for turn in trajectory.turns] == [*counts[:parted_at], 9]
    assert it.counts.diverged_tok == sum(counts[parted_at:])


@given(requests=st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=5), prompt_tok=st.integers(1, 4))
def test_given_any_requests_when_routes_are_recorded_then_they_are_those_of_the_last_one_that_read_the_context(
    requests, prompt_tok
) -> None:
    """Each request reads the whole context again, and may be lost after any of its pieces."""
    turn = Turn(prompt_digest=b"", prompt_len_tok=prompt_tok)
    expected: list[int] = []
    number = 0
    for version, pieces in enumerate(requests):
        start = 0
        for count in pieces:
            append_tokens(turn, [7] * count, [0.0] * count, [(version, count)])
            read_tok = prompt_tok + turn.generated_tok - 1
            append_routes(turn, start, np.full((read_tok - start, 2, 3), number, np.uint8))
            expected = expected[:start] + [number] * (read_tok - start)
            start, number = read_tok, number + 1
    rows = array_of(turn.routes).tolist() if turn.routes else []
    assert rows == [[[number] * 3] * 2 for number in expected]
    cut(turn, turn.generated_tok // 2)
    assert turn.routes is None or turn.routes.rows == prompt_tok + turn.generated_tok - 1
    with pytest.raises(BrokenRecord, match="follow on those of"):
        append_routes(turn, 1000, np.zeros((1, 2, 3), np.uint8))


@pytest.mark.parametrize(("told", "shared"), [([5, 5, 6, 8, 8], [True, True]), ([5, 4, 6], [False, True]), ([5], [])])
def test_given_a_turn_after_another_then_it_has_what_its_own_requests_tell_and_holds_once_what_is_the_same(
    told, shared
) -> None:
    it = recorder(trajectory := Trajectory(session_id=0))
    take_turn(it, [1, 2], [7, 7])
    before = trajectory.turns[0]
    for start, rows in (0, [5, 5]), (2, [6]):
        append_routes(before, start, np.array(rows, np.uint8)[:, None, None])
    turn = it.begin_turn([3])
    for _ in range(2):  # also where it begins anew
        append_tokens(turn, [7], [0.0], [(0, 1)])
        append_routes(turn, 0, np.array(told, np.uint8)[:, None, None])
        assert turn.routes and array_of(turn.routes).flatten().tolist() == told
        it.lose(turn)
    pairs = zip(turn.routes.blocks, before.routes.blocks if before.routes else (), strict=False)
    assert [one is other for one, other in pairs][: len(shared)] == shared
    assert array_of(before.routes).flatten().tolist() == [5, 5, 6]


@given(st.lists(tokens, max_size=5), st.lists(tokens, max_size=5))
def test_digests_tell_prompts_apart(left: list[int], right: list[int]) -> None:
    assert (prompt_digest(left) == prompt_digest(right)) == (left == right)


@given(chunks)
def test_given_a_trajectory_when_finished_or_restarted_then_its_lengths_and_versions_follow(chunks) -> None:
    trajectory = Trajectory(session_id=0)
    turn = TrajectoryRecorder(trajectory=trajectory).begin_turn([1])
    for chunk in chunks:
        append_tokens(turn, [t for t, _, _ in chunk], [p for _, p, _ in chunk], stamps_of([v for _, _, v in chunk]))
    count, stamps = trajectory.generated_tok, trajectory.stamps
    group = PromptGroup(uid="u", prompt={}, drawn_at_step=1, trajectories=[trajectory, Trajectory(session_id=1)])
    assert group.has_started == any(chunks) and len(group.unfinished) == 2
    trajectory.finish(["output"])
    assert (trajectory.generated_tok, trajectory.stamps, trajectory.turns) == (count, stamps, [])
    assert group.unfinished == group.trajectories[1:]
    assert group.versions() == {version for version, _ in stamps}
    group.trajectories[1].age = 3
    assert group.age == 3
    assert group.restart() == count
    assert not group.has_started and group.generated_tok == group.age == 0 and not group.versions()


def test_given_a_turn_that_no_engine_has_begun_then_its_trajectory_has_not_started() -> None:
    trajectory = Trajectory(session_id=0)
    TrajectoryRecorder(trajectory=trajectory).begin_turn([1])
    assert not trajectory.has_started, "it waited for a lease, and there is nothing to resume"
    trajectory.suspension = Suspension(worker=0, loop="0-0")
    assert trajectory.has_started, "its loop is alive"


def sampled_by(versions: list[int], kinds: int = 100) -> tuple[Turn, Turn]:
    """Two turns of tokens 0, 1, 2, ..., of so many kinds, with log-probs 0, -1, -2, ... of the given versions."""
    turns = Turn(prompt_digest=b"", prompt_len_tok=1), Turn(prompt_digest=b"", prompt_len_tok=1)
    for token, version in enumerate(versions):
        turns[token >= len(versions) // 2].segments.append(
            Segment(policy_version=version, token_ids=[token % kinds], rollout_log_probs=[-float(token)])
        )
    return turns


@given(
    versions=st.lists(st.integers(0, 3), min_size=1, max_size=12), kinds=st.sampled_from([1, 2, 100]), data=st.data()
)
def test_given_outputs_that_drop_some_sampled_tokens_then_the_versions_of_the_others_are_found(
    versions, kinds, data
) -> None:
    kept = sorted(data.draw(st.sets(st.integers(0, len(versions) - 1))))
    border = data.draw(st.integers(0, len(kept)))
    sampled = SampledTokens(sampled_by(versions, kinds))
    for output in (kept[:border], kept[border:]):
        found = sampled.stamps_of([t % kinds for t in output], [-float(t) for t in output])
        assert found == tuple(stamps_of([versions[t] for t in output]))


def test_given_an_engine_s_log_prob_that_is_no_number_then_no_agent_loop_is_blamed_for_it() -> None:
    turn = Turn(prompt_digest=b"", prompt_len_tok=1)
    append_tokens(turn, [5], [math.nan], [(3, 1)])
    assert SampledTokens([turn]).stamps_of([5], turn.rollout_log_probs) == ((3, 1),)
    after_a_gap = SampledTokens([*sampled_by([0], 1), turn])
    assert after_a_gap.stamps_of([5], turn.rollout_log_probs) == ((3, 1),)


def test_given_answers_in_another_order_and_log_probs_that_are_no_numbers_then_their_turns_are_put_first() -> None:
    it = TrajectoryRecorder(trajectory=Trajectory(session_id=0), is_side_by_side=True)
    turns = [it.begin_turn([1]) for _ in range(3)]
    for turn, log_prob in zip(turns, (-1.0, math.nan, math.nan), strict=True):
        append_tokens(turn, [5], [log_prob], [(0, 1)])
    answers = [(turn.prompt_digest, [5], turn.rollout_log_probs) for turn in (turns[2], turns[0])]
    asyncio.run(it.put_first(answers))
    assert it.trajectory.turns == [turns[1], turns[0], turns[2]], "of equal turns the first"
    with pytest.raises(BrokenRecord):
        asyncio.run(it.put_first([(turns[0].prompt_digest, [5], [-2.0])]))


@pytest.mark.parametrize(
    ("token_ids", "log_probs"),
    [
        ([0, 2, 1], [0.0, -2.0, -1.0]),
        ([3], [-3.0]),
        ([0, 2], [0.0, -1.0]),
        ([0, 1], [0.0, -9.0]),
        ([0, 1, 2], [-1.0, -2.0, 0.0]),
        ([0, 1, 2, 0], [0.0, -1.0, -2.0, 0.0]),
    ],
    ids=["another order", "another token", "another log-prob", "the same in a row", "shifted log-probs", "too many"],
)
def test_given_an_output_that_was_not_sampled_then_it_is_an_error(token_ids, log_probs) -> None:
    with pytest.raises(BrokenRecord, match="tokens that no engine sampled, or in another order"):
        SampledTokens(sampled_by([0, 0, 1])).stamps_of(token_ids, log_probs)


def ids(it: TrajectoryRecorder, names: list[str]) -> list[str]:
    return [it.begin_call(name, b"arguments")[0].call_id for name in names]


@given(st.lists(st.sampled_from("abc"), max_size=8), st.randoms())
def test_given_calls_of_one_turn_when_they_overtake_each_other_then_each_finds_its_own(names, random) -> None:
    trajectory = Trajectory(session_id=0)
    first = ids(recorder(trajectory), names)
    assert len(set(first)) == len(names) == len(trajectory.calls)
    again = recorder(trajectory)
    assert sorted(ids(again, random.sample(names, len(names)))) == sorted(first)
    assert len(trajectory.calls) == len(names)


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
    assert len(trajectory.calls) == len(SCHEDULE) * len(calls)


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
    assert list(trajectory.calls) == before + between
    assert again.counts.calls_diverged == 1 and again.counts.diverged_tok == 1


def test_given_a_trajectory_without_its_tokens_then_its_calls_count_and_weigh_nothing() -> None:
    trajectory = Trajectory(session_id=0)
    call, is_new = recorder(trajectory).begin_call("reset", b"arguments")
    call.result = b"result"
    assert is_new and trajectory.journal_bytes == len(b"argumentsresult")
    group = PromptGroup(uid="group", prompt={}, drawn_at_step=1, trajectories=[trajectory])
    whole = group.take_tokens()
    assert group.has_started and trajectory.journal_bytes == 0
    call.result = b"a call that goes on writes it"
    assert whole.trajectories[0].journal_bytes == len(b"argumentsresult")
    group.restart()
    assert not group.has_started
