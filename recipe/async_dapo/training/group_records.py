"""The plain form of a prompt group: typed records for msgpack, with arrays as bytes."""

from array import array
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from verl.experimental.agent_loop import AgentLoopOutput

from ..core.journal import Call
from ..core.trajectory import PromptGroup, Segment, Trajectory, Turn
from ..files.plain_values import AGENT_LOOP, DATA_SET, to_plain
from ..rollout.packed_output import PackedOutput

Count = Annotated[int, msgspec.Meta(ge=0)]
Stamps = tuple[tuple[int, Count], ...]  # (policy version, tokens)


class Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Part of a checkpoint: typed, and without fields that it does not know."""


class SegmentRecord(Record):
    policy_version: int
    token_ids: bytes  # int32
    rollout_log_probs: bytes  # float32, nats


class TurnRecord(Record):
    prompt_digest: bytes
    prompt_len_tok: Count
    segments: list[SegmentRecord]
    finish_reason: str | None


class CallRecord(Record):
    call_id: str
    turn: Count
    arguments: bytes  # msgpack
    result: bytes | None  # msgpack


class OutputRecord(Record):
    rest: dict[str, Any]  # of verl's output, as far as it was set
    stamps: Stamps
    prompt_ids: bytes  # int32
    response_ids: bytes  # int32
    response_mask: bytes
    response_logprobs: bytes  # float32, nats


class TrajectoryRecord(Record):
    session_id: Count
    age: Count
    turns: list[TurnRecord]
    calls: list[CallRecord]
    is_replayable: bool
    outputs: list[OutputRecord] | None
    finished_stamps: Stamps


class GroupRecord(Record):
    uid: str
    prompt: dict[str, Any]
    drawn_at_step: Count
    is_certain: bool
    key: str
    deferred_until: Count
    trajectories: Annotated[list[TrajectoryRecord], msgspec.Meta(min_length=1)]


def record_of(group: PromptGroup) -> GroupRecord:
    return GroupRecord(
        uid=group.uid,
        prompt=to_plain(group.prompt, source=DATA_SET),
        drawn_at_step=group.drawn_at_step,
        is_certain=group.is_certain,
        key=group.key,
        deferred_until=group.deferred_until,
        trajectories=[_trajectory_record(trajectory) for trajectory in group.trajectories],
    )


def _trajectory_record(trajectory: Trajectory) -> TrajectoryRecord:
    outputs = trajectory.outputs
    return TrajectoryRecord(
        session_id=trajectory.session_id,
        age=trajectory.age,
        turns=[_turn_record(turn) for turn in trajectory.turns],
        calls=[
            CallRecord(call_id=call.call_id, turn=call.turn, arguments=call.arguments, result=call.result)
            for call in trajectory.calls.values()
        ],
        is_replayable=trajectory.is_replayable,
        outputs=None if outputs is None else [_output_record(packed) for packed in outputs],
        finished_stamps=trajectory.finished_stamps,
    )


def _turn_record(turn: Turn) -> TurnRecord:
    """Without its request: no engine outlives the run."""
    return TurnRecord(
        prompt_digest=turn.prompt_digest,
        prompt_len_tok=turn.prompt_len_tok,
        segments=[
            SegmentRecord(
                policy_version=segment.policy_version,
                token_ids=_bytes("i", segment.token_ids),
                rollout_log_probs=_bytes("f", segment.rollout_log_probs),
            )
            for segment in turn.segments
        ],
        finish_reason=turn.finish_reason,
    )


def _output_record(packed: PackedOutput) -> OutputRecord:
    rest = packed.rest
    # A default dict that a loop has filled does not count as set.
    fields = {name: getattr(rest, name) for name in rest.model_fields_set | {"extra_fields"}}
    fields["metrics"] = rest.metrics.model_dump(exclude_unset=True)
    return OutputRecord(
        rest=to_plain(fields, source=AGENT_LOOP),
        stamps=packed.stamps,
        prompt_ids=packed.prompt_ids.tobytes(),
        response_ids=packed.response_ids.tobytes(),
        response_mask=packed.response_mask,
        response_logprobs=packed.response_logprobs.tobytes(),
    )


def group_of(record: GroupRecord) -> PromptGroup:
    return PromptGroup(
        uid=record.uid,
        prompt=record.prompt,
        drawn_at_step=record.drawn_at_step,
        is_certain=record.is_certain,
        key=record.key,
        deferred_until=record.deferred_until,
        trajectories=[_trajectory(trajectory) for trajectory in record.trajectories],
    )


def _trajectory(record: TrajectoryRecord) -> Trajectory:
    return Trajectory(
        session_id=record.session_id,
        age=record.age,
        turns=[_turn(turn) for turn in record.turns],
        calls={
            call.call_id: Call(call_id=call.call_id, turn=call.turn, arguments=call.arguments, result=call.result)
            for call in record.calls
        },
        is_replayable=record.is_replayable,
        is_restored=record.outputs is None and bool(record.turns or record.calls),
        outputs=None if record.outputs is None else [_output(output) for output in record.outputs],
        finished_stamps=record.finished_stamps,
    )


def _turn(record: TurnRecord) -> Turn:
    return Turn(
        prompt_digest=record.prompt_digest,
        prompt_len_tok=record.prompt_len_tok,
        segments=[
            Segment(
                policy_version=segment.policy_version,
                token_ids=array("i", segment.token_ids),
                rollout_log_probs=array("f", segment.rollout_log_probs),
            )
            for segment in record.segments
        ],
        finish_reason=record.finish_reason,
    )


def _output(record: OutputRecord) -> PackedOutput:
    response_ids = array("i", record.response_ids)
    log_probs = array("f", record.response_logprobs)
    if not len(record.response_mask) == len(log_probs) == len(response_ids):
        raise ValueError("tokens, mask and log-probs of an output differ in length")
    return PackedOutput(
        rest=AgentLoopOutput(**record.rest),
        stamps=record.stamps,
        prompt_ids=array("i", record.prompt_ids),
        response_ids=response_ids,
        response_mask=record.response_mask,
        response_logprobs=log_probs,
    )


def _bytes(typecode: str, values: Sequence[int] | Sequence[float]) -> bytes:
    return (values if isinstance(values, array) else array(typecode, values)).tobytes()
