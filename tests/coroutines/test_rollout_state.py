"""What a checkpoint keeps of the rollout: it comes back whole, and bytes from elsewhere do no more than fail."""

import os
import pickle
from array import array
from ast import literal_eval
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from recipe.async_dapo.core.concurrency import ConcurrencyState
from recipe.async_dapo.core.ledger import Ledger
from recipe.async_dapo.core.outcome import CarriedGroup
from recipe.async_dapo.core.over_sampling import LengthsEnded, OverSamplingState
from recipe.async_dapo.core.pool import PoolState
from recipe.async_dapo.core.routes import Routes
from recipe.async_dapo.core.trajectory import PromptGroup, Segment, Trajectory, Turn
from recipe.async_dapo.record.checkpoint_folder import FORMAT, DamagedCheckpoint
from recipe.async_dapo.rollout.packed_output import PackedOutput
from recipe.async_dapo.training.checkpoints import RolloutState, from_frames, to_frames

from ..support.costly import costly
from ..support.texts import any_text

INT32, COUNT = st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**40)
FLOAT = st.floats(0, 1e9)
STAMPS = st.lists(st.tuples(st.integers(-1, 100), st.integers(0, 10**6)), max_size=3).map(tuple)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    ids = draw(st.lists(INT32, max_size=5))
    probs = draw(st.lists(st.floats(width=32, allow_nan=False), min_size=len(ids), max_size=len(ids)))
    return Segment(
        policy_version=draw(st.integers(-1, 1000)), token_ids=array("i", ids), rollout_log_probs=array("f", probs)
    )


ROUTES = st.none() | st.builds(
    Routes,
    layers=st.just(2),
    top_k=st.just(3),
    itemsize=st.sampled_from([1, 2]),
    blocks=st.lists(st.integers(0, 2).map(lambda rows: bytes(range(12)) * rows), max_size=2).map(tuple),
)
TURNS = st.builds(
    Turn,
    routes=ROUTES,
    prompt_digest=st.binary(),
    prompt_len_tok=COUNT,
    segments=st.lists(segments(), max_size=3),
    finish_reason=st.none() | any_text(),
)


@st.composite
def outputs(draw: st.DrawFn) -> PackedOutput:
    tokens = draw(st.lists(INT32, max_size=5))
    settings = draw(
        st.fixed_dictionaries({}, optional={"reward_score": st.floats(0, 1), "num_turns": st.integers(0, 9)})
    )
    rest = AgentLoopOutput(
        prompt_ids=[], response_ids=[], response_mask=[], metrics=AgentLoopMetrics(tool_calls=draw(st.floats(0, 1)))
    ).model_copy(update=settings)
    rest.extra_fields["reward_extra_info"] = draw(st.dictionaries(any_text(), st.floats(0, 1), max_size=2))
    return PackedOutput(
        rest=rest,
        stamps=draw(STAMPS),
        prompt_ids=array("i", draw(st.lists(INT32, max_size=3))),
        response_ids=array("i", tokens),
        response_mask=bytes([1] * len(tokens)),
        response_logprobs=array("f", [-0.5] * len(tokens)),
        routes=draw(ROUTES),
    )


TRAJECTORIES = st.builds(
    Trajectory,
    session_id=COUNT,
    age=COUNT,
    turns=st.lists(TURNS, max_size=2),
) | st.builds(Trajectory, session_id=COUNT, outputs=st.lists(outputs(), max_size=2), finished_stamps=STAMPS)
PROMPTS = st.dictionaries(any_text(), st.none() | any_text() | COUNT | st.lists(st.floats(0, 1)), max_size=3)


@st.composite
def states(draw: st.DrawFn) -> RolloutState:
    counts = [draw(st.integers(0, 2)) for _ in range(3)]
    groups = [
        PromptGroup(
            uid=f"group-{i}",
            prompt=draw(PROMPTS),
            drawn_at_step=draw(COUNT),
            key=draw(any_text()),
            trajectories=draw(st.lists(TRAJECTORIES, min_size=1, max_size=2)),
        )
        for i in range(sum(counts))
    ]
    waiting, buffered, carried = (groups[sum(counts[:k]) : sum(counts[: k + 1])] for k in range(3))
    pool = PoolState(
        waiting=tuple(waiting),
        buffered=tuple(buffered),
        carried=tuple(
            CarriedGroup(group=group, oldest_version=0, newest_version=3, generated_tok=draw(COUNT))
            for group in carried
        ),
        ledger=Ledger(drawn=draw(COUNT), trained=draw(COUNT)),
    )
    return RolloutState(
        pool=pool,
        over_sampling=OverSamplingState(surplus=draw(COUNT), valid=draw(st.floats(0, 1e5)), judged=draw(FLOAT)),
        ended=LengthsEnded(count=draw(FLOAT), tok=draw(FLOAT)),
        concurrency=draw(st.none() | st.builds(ConcurrencyState, context_tok=FLOAT, share=st.floats(0, 1))),
        extensions=draw(st.dictionaries(any_text(), st.binary(min_size=1), max_size=2)),
    )


@pytest.mark.slow
@costly()
@given(state=states())
def test_given_any_state_when_saved_and_read_then_it_is_what_it_was(state: RolloutState) -> None:
    assert from_frames(to_frames(state)) == state


@costly()
@given(state=states(), data=st.data())
def test_given_any_state_when_a_byte_is_changed_or_a_frame_is_missing_then_it_is_read_or_refused(state, data) -> None:
    frames = [bytearray(frame) for frame in to_frames(state)]
    place = data.draw(st.integers(0, len(frames) - 1))
    if data.draw(st.booleans()):
        del frames[place]
    else:
        frames[place][data.draw(st.integers(0, len(frames[place]) - 1))] = data.draw(st.integers(0, 255))
    try:
        from_frames(bytes(frame) for frame in frames)
    except DamagedCheckpoint:
        pass


def test_given_a_long_interrupted_trajectory_when_saved_then_it_takes_eight_bytes_a_token() -> None:
    tokens = 16_384
    ids, log_probs = array("i", range(tokens)), array("f", [-0.5] * tokens)
    segment = Segment(policy_version=3, token_ids=ids, rollout_log_probs=log_probs)
    turn = Turn(prompt_digest=b"0" * 16, prompt_len_tok=100, segments=[segment])
    group = PromptGroup(uid="a", prompt={}, drawn_at_step=1, trajectories=[Trajectory(session_id=0, turns=[turn])])
    pool = PoolState(waiting=(), buffered=(group,), carried=(), ledger=Ledger())
    size = sum(map(len, to_frames(RolloutState(pool=pool))))
    assert 8 * tokens < size < 8 * tokens + 1000


def test_given_turns_that_go_on_from_each_other_when_saved_and_read_then_they_share_their_routes() -> None:
    block, turns = bytes(6_000), 20
    routes = [Routes(layers=2, top_k=3, itemsize=1, blocks=(block,) * count) for count in range(1, turns + 1)]
    held = [Turn(prompt_digest=b"", prompt_len_tok=1, routes=one) for one in routes]
    group = PromptGroup(uid="a", prompt={}, drawn_at_step=1, trajectories=[Trajectory(session_id=0, turns=held)])
    state = RolloutState(pool=PoolState(waiting=(), buffered=(group,), carried=(), ledger=Ledger()))
    frames = list(to_frames(state))
    assert len(block) * turns < sum(map(len, frames)) < len(block) * turns + 200 * turns
    read = from_frames(frames)
    assert read == state
    blocks = [turn.routes.blocks for turn in read.pool.buffered[0].trajectories[0].turns if turn.routes]
    assert len({id(one) for blocks_of_turn in blocks for one in blocks_of_turn}) == turns


def test_given_frames_of_this_format_when_read_and_saved_again_then_they_are_the_same() -> None:
    """What fails here is another format: raise `FORMAT`, and add a file with the frames of a state of all these."""
    file = Path(__file__).parents[1] / "support" / f"pool_of_format_{FORMAT}.txt"
    frames = [literal_eval(line) for line in file.read_text().splitlines()]
    assert list(to_frames(state := from_frames(frames))) == frames
    assert state.extensions == {"name": b"state"}
    for kind in (CarriedGroup, ConcurrencyState, PackedOutput, Segment):
        assert f"{kind.__name__}(" in repr(state)


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


def hostile_frames(folder: Path) -> dict[str, list[bytes]]:
    head, group = to_frames(
        RolloutState(
            pool=PoolState(
                waiting=(PromptGroup(uid="a", prompt={}, drawn_at_step=1, trajectories=[Trajectory(session_id=0)]),),
                buffered=(),
                carried=(),
                ledger=Ledger(drawn=1),
            ),
        )
    )
    payload = pickle.dumps(Hostile(folder))

    counts, rest = msgspec.msgpack.decode(head)

    def head_with(waiting: int = 1, **fields: Any) -> bytes:
        return msgspec.msgpack.encode([[waiting, *counts[1:]], rest | fields])

    def group_with(**fields: Any) -> list[bytes]:
        return [head, msgspec.msgpack.encode(msgspec.msgpack.decode(group) | fields)]

    def group_with_prompt(value: Any) -> list[bytes]:
        return group_with(prompt={"column": value})

    segment = {"policy_version": 0, "token_ids": b"1234", "rollout_log_probs": b""}
    turn = {"prompt_digest": b"", "prompt_len_tok": 1, "segments": [], "finish_reason": None}

    def group_with_trajectory(**fields: Any) -> list[bytes]:
        (trajectory,) = msgspec.msgpack.decode(group)["trajectories"]
        return group_with(trajectories=[trajectory | fields])

    objects = msgspec.msgpack.encode(("O", [10**12], [payload]))
    return {
        "a pickle": [payload],
        "a pickled group": [head, payload],
        **{f"a pickle in extension {code}": group_with_prompt(msgspec.msgpack.Ext(code, payload)) for code in range(8)},
        "an array of more objects than there are": group_with_prompt(msgspec.msgpack.Ext(6, objects)),
        "deep nesting": [head, b"\x91" * 10**6],
        "nested extensions": group_with_prompt(nested_tuples(5000)),
        "a list longer than the file": [b"\xdd\xff\xff\xff\xff"],
        "more groups than there are": [head_with(waiting=2**62), group],
        "a group twice": [head_with(waiting=2), group, group],
        "a negative count": [head_with(waiting=-1), group],
        "another type": [head_with(ended="1"), group],
        "an unknown field": group_with(made_up=1),
        "a field of a process": group_with(parked=None),
        "a missing field": [head_with(), msgspec.msgpack.encode({"uid": "a"})],
        "an unknown field of the head": [head_with(ended=rest["ended"] | {"made_up": 1}), group],
        "text for bytes": group_with_trajectory(turns=[{**turn, "prompt_digest": "YWJj"}]),
        "half a token": group_with_trajectory(turns=[{**turn, "segments": [{**segment, "token_ids": b"123"}]}]),
        "a token without a log-prob": group_with_trajectory(turns=[{**turn, "segments": [segment]}]),
        "more groups than were saved": [head, group, msgspec.msgpack.encode({})],
        "no trajectories": group_with(trajectories=[]),
        "nothing": [],
    }


def nested_tuples(depth: int) -> msgspec.msgpack.Ext:
    value = msgspec.msgpack.Ext(1, msgspec.msgpack.encode([]))
    for _ in range(depth):
        value = msgspec.msgpack.Ext(1, msgspec.msgpack.encode([value]))
    return value


@pytest.mark.parametrize("name", hostile_frames(Path()))
def test_given_bytes_from_elsewhere_when_read_then_they_fail_and_run_no_code(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    with pytest.raises(DamagedCheckpoint):
        from_frames(hostile_frames(folder)[name])
    assert not folder.exists()
