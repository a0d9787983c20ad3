"""What a checkpoint keeps of the rollout, and its plain form: msgpack frames, typed, with arrays as bytes.

The first frame holds all but the prompt groups; a frame each follows for those that wait, are buffered, are carried.
Records here are the format of the file: they change only together with `checkpoint_folder.FORMAT`.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import msgspec
from verl.experimental.agent_loop import AgentLoopOutput

from ..checkpoint_folder import DamagedCheckpoint
from ..core.ledger import Ledger
from ..core.length_bias import ObservedLengths
from ..core.pool_records import CarriedGroup, PoolState
from ..core.trajectory import PromptGroup, Segment, Trajectory, Turn
from ..plain_values import AGENT_LOOP, DATA_SET, read_extension, to_plain
from ..store import PackedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """The rollout between two steps."""

    pool: PoolState
    surplus: int  # groups held beyond B
    lengths: tuple[ObservedLengths, ...]


Count = Annotated[int, msgspec.Meta(ge=0)]
Stamps = tuple[tuple[int, Count], ...]  # (policy version, tokens)


class _Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    pass


class SegmentRecord(_Record):
    policy_version: int
    token_ids: bytes  # int32
    rollout_log_probs: bytes  # float32, nats


class TurnRecord(_Record):
    prompt_digest: bytes
    prompt_len_tok: Count
    segments: list[SegmentRecord]
    finish_reason: str | None


class OutputRecord(_Record):
    rest: dict[str, Any]  # of verl's output, as far as it was set
    stamps: Stamps
    prompt_ids: bytes  # int32
    response_ids: bytes  # int32
    response_mask: bytes
    response_logprobs: bytes | None  # float32, nats


class TrajectoryRecord(_Record):
    session_id: Count
    age: Count
    turns: list[TurnRecord]
    outputs: list[OutputRecord] | None
    finished_stamps: Stamps


class GroupRecord(_Record):
    uid: str
    prompt: dict[str, Any]
    drawn_at_step: Count
    trajectories: Annotated[list[TrajectoryRecord], msgspec.Meta(min_length=1)]


class CarriedRecord(_Record):
    group: GroupRecord
    oldest_version: int
    newest_version: int
    generated_tok: Count


class HeadRecord(_Record):
    ledger: Ledger
    surplus: Count
    lengths: tuple[ObservedLengths, ...]
    waiting: Count
    buffered: Count
    carried: Count


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(HeadRecord).decode
_decode_group = msgspec.msgpack.Decoder(GroupRecord, ext_hook=read_extension).decode
_decode_carried = msgspec.msgpack.Decoder(CarriedRecord, ext_hook=read_extension).decode


def to_frames(state: RolloutState) -> Iterator[bytes]:
    """The state as plain data.

    Raises:
        ConfigError: naming a value of a user's that is not plain.
    """
    pool = state.pool
    yield _encode(
        HeadRecord(
            ledger=pool.ledger,
            surplus=state.surplus,
            lengths=state.lengths,
            waiting=len(pool.waiting),
            buffered=len(pool.buffered),
            carried=len(pool.carried),
        )
    )
    for group in (*pool.waiting, *pool.buffered):
        yield _encode(_group_record(group))
    for carried in pool.carried:
        yield _encode(
            CarriedRecord(
                group=_group_record(carried.group),
                oldest_version=carried.oldest_version,
                newest_version=carried.newest_version,
                generated_tok=carried.generated_tok,
            )
        )


def from_frames(frames: Iterable[bytes]) -> RolloutState:
    """The state that was saved. Reads all frames, so that their source can compare its checksum.

    Raises:
        DamagedCheckpoint: if they are something else. No code of theirs runs.
    """
    try:
        return _from_frames(iter(frames))
    except DamagedCheckpoint:
        raise
    except Exception as error:  # whatever the bytes of another file make the readers of values raise
        raise DamagedCheckpoint(f"{type(error).__name__}: {error}") from error


def _from_frames(frames: Iterator[bytes]) -> RolloutState:
    head = _decode_head(next(frames, b""))
    groups = [_group(_decode_group(frame)) for frame in islice(frames, head.waiting + head.buffered)]
    carried = [_carried(_decode_carried(frame)) for frame in frames]
    if (len(groups), len(carried)) != (head.waiting + head.buffered, head.carried):
        raise ValueError(f"{len(groups)} and {len(carried)} prompt groups where {head} says otherwise")
    uids = {group.uid for group in groups} | {group.uid for group in carried}
    if len(uids) != len(groups) + len(carried):
        raise ValueError("two prompt groups have one uid")
    pool = PoolState(
        waiting=tuple(groups[: head.waiting]),
        buffered=tuple(groups[head.waiting :]),
        carried=tuple(carried),
        ledger=head.ledger,
    )
    return RolloutState(pool=pool, surplus=head.surplus, lengths=head.lengths)


def _group_record(group: PromptGroup) -> GroupRecord:
    return GroupRecord(
        uid=group.uid,
        prompt=to_plain(group.prompt, source=DATA_SET),
        drawn_at_step=group.drawn_at_step,
        trajectories=[_trajectory_record(trajectory) for trajectory in group.trajectories],
    )


def _trajectory_record(trajectory: Trajectory) -> TrajectoryRecord:
    outputs = trajectory.outputs
    return TrajectoryRecord(
        session_id=trajectory.session_id,
        age=trajectory.age,
        turns=[_turn_record(turn) for turn in trajectory.turns],
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
        response_logprobs=None if packed.response_logprobs is None else packed.response_logprobs.tobytes(),
    )


def _carried(record: CarriedRecord) -> CarriedGroup:
    return CarriedGroup(
        group=_group(record.group),
        oldest_version=record.oldest_version,
        newest_version=record.newest_version,
        generated_tok=record.generated_tok,
    )


def _group(record: GroupRecord) -> PromptGroup:
    return PromptGroup(
        uid=record.uid,
        prompt=record.prompt,
        drawn_at_step=record.drawn_at_step,
        trajectories=[_trajectory(trajectory) for trajectory in record.trajectories],
    )


def _trajectory(record: TrajectoryRecord) -> Trajectory:
    return Trajectory(
        session_id=record.session_id,
        age=record.age,
        turns=[_turn(turn) for turn in record.turns],
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
    log_probs = None if record.response_logprobs is None else array("f", record.response_logprobs)
    if any(len(part) != len(response_ids) for part in (record.response_mask, log_probs) if part is not None):
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
