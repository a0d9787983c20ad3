"""Recording: segments are the tokens, whatever the interruptions; replay; divergence."""

import math
import pickle
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.trajectory import (
    BrokenRecord,
    PromptGroup,
    Segment,
    Trajectory,
    Turn,
)
from recipe.async_dapo.engines.routes import append_routes, array_of
from recipe.async_dapo.engines.stop_strings import cut
from recipe.async_dapo.recording import SampledTokens, TrajectoryRecorder, append_tokens, prompt_digest

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
