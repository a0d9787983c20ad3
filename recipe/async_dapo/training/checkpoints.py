"""What a checkpoint keeps of the rollout: its state, the state's plain form, and which checkpoints stay on the disk.

The plain form is msgpack frames. The first one holds all but the prompt groups; a frame each follows for those that
wait, are deferred, buffered, carried. The records are the file's format, with arrays as bytes: they change only
together with `checkpoint_folder.FORMAT`.
"""

import logging
import shutil
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec.structs import asdict
from omegaconf import DictConfig
from verl.experimental.agent_loop import AgentLoopOutput

from ..config import checkpoints_to_keep
from ..core.concurrency import ConcurrencyState
from ..core.journal import Call
from ..core.ledger import Ledger
from ..core.length_bias import ObservedLengths
from ..core.over_sampling import LengthsEnded, OverSamplingState
from ..core.pool import CarriedGroup, PoolState
from ..core.prompt_history import PassCount
from ..core.trajectory import PromptGroup, Segment, Trajectory, Turn
from ..record.checkpoint_folder import COMPLETE_FILE, DamagedCheckpoint, checkpoint_folders, step_of
from ..record.plain_values import AGENT_LOOP, DATA_SET, read_extension, to_plain
from ..rollout.packed_output import PackedOutput
from ..rollout.parking import with_tokens

logger = logging.getLogger(__name__)

Count = Annotated[int, msgspec.Meta(ge=0)]
Stamps = tuple[tuple[int, Count], ...]  # (policy version, tokens)


class Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Part of a checkpoint: typed, and without fields that it does not know."""


R = TypeVar("R", bound=Record)


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
    """The plain form of a group that has its tokens."""
    trajectories = [_trajectory_record(trajectory) for trajectory in group.trajectories]
    return _record(GroupRecord, group, prompt=to_plain(group.prompt, source=DATA_SET), trajectories=trajectories)


def _trajectory_record(trajectory: Trajectory) -> TrajectoryRecord:
    outputs = trajectory.outputs
    return _record(
        TrajectoryRecord,
        trajectory,
        turns=[_turn_record(turn) for turn in trajectory.turns],
        calls=[_record(CallRecord, call) for call in trajectory.calls.values()],
        outputs=None if outputs is None else [_output_record(packed) for packed in outputs],
    )


def _turn_record(turn: Turn) -> TurnRecord:
    """Without its request: no engine outlives the run."""
    return _record(TurnRecord, turn, segments=[_segment_record(segment) for segment in turn.segments])


def _segment_record(segment: Segment) -> SegmentRecord:
    return SegmentRecord(
        policy_version=segment.policy_version,
        token_ids=array("i", segment.token_ids).tobytes(),
        rollout_log_probs=array("f", segment.rollout_log_probs).tobytes(),
    )


def _output_record(packed: PackedOutput) -> OutputRecord:
    rest = packed.rest
    # A default dict that a loop has filled does not count as set.
    fields = {name: getattr(rest, name) for name in rest.model_fields_set | {"extra_fields"}}
    fields["metrics"] = rest.metrics.model_dump(exclude_unset=True)
    return _record(
        OutputRecord,
        packed,
        rest=to_plain(fields, source=AGENT_LOOP),
        prompt_ids=packed.prompt_ids.tobytes(),
        response_ids=packed.response_ids.tobytes(),
        response_logprobs=packed.response_logprobs.tobytes(),
    )


def _record(kind: type[R], source: object, **others: Any) -> R:
    """A record with the fields that `source` has under the same names, and these others."""
    same = {name: getattr(source, name) for name in kind.__struct_fields__ if name not in others}
    return kind(**same, **others)


def group_of(record: GroupRecord) -> PromptGroup:
    return PromptGroup(**asdict(record) | {"trajectories": [_trajectory(one) for one in record.trajectories]})


def _trajectory(record: TrajectoryRecord) -> Trajectory:
    outputs = record.outputs
    restored = {
        "turns": [_turn(turn) for turn in record.turns],
        "calls": {call.call_id: Call(**asdict(call)) for call in record.calls},
        "outputs": None if outputs is None else [_output(output) for output in outputs],
    }
    return Trajectory(**asdict(record) | restored, is_restored=outputs is None and bool(record.turns or record.calls))


def _turn(record: TurnRecord) -> Turn:
    return Turn(**asdict(record) | {"segments": [_segment(segment) for segment in record.segments]})


def _segment(record: SegmentRecord) -> Segment:
    return Segment(
        policy_version=record.policy_version,
        token_ids=array("i", record.token_ids),
        rollout_log_probs=array("f", record.rollout_log_probs),
    )


def _output(record: OutputRecord) -> PackedOutput:
    restored = {
        "rest": AgentLoopOutput(**record.rest),
        "prompt_ids": array("i", record.prompt_ids),
        "response_ids": (response_ids := array("i", record.response_ids)),
        "response_logprobs": (log_probs := array("f", record.response_logprobs)),
    }
    if not len(record.response_mask) == len(log_probs) == len(response_ids):
        raise ValueError("tokens, mask and log-probs of an output differ in length")
    return PackedOutput(**asdict(record) | restored)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """The rollout between two steps."""

    pool: PoolState
    over_sampling: OverSamplingState = field(default_factory=lambda: OverSamplingState(surplus=0))
    ended: LengthsEnded = field(default_factory=LengthsEnded)
    concurrency: ConcurrencyState | None = None  # None before the first round has ended
    lengths: tuple[ObservedLengths, ...] = ()
    history: dict[str, PassCount] = field(default_factory=dict)


class CarriedRecord(Record):
    group: GroupRecord
    oldest_version: int
    newest_version: int
    generated_tok: Count


class HeadRecord(Record):
    ledger: Ledger
    over_sampling: OverSamplingState
    ended: LengthsEnded
    concurrency: ConcurrencyState | None
    lengths: tuple[ObservedLengths, ...]
    history: dict[str, PassCount]
    waiting: Count
    deferred: Count
    buffered: Count
    carried: Count


_PARTS = ("waiting", "deferred", "buffered", "carried")
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
    counts = {part: len(getattr(pool, part)) for part in _PARTS}
    yield _encode(_record(HeadRecord, state, ledger=pool.ledger, **counts))
    for group in (*pool.waiting, *pool.deferred, *pool.buffered):
        yield _encode(record_of(with_tokens(group)))
    for carried in pool.carried:
        yield _encode(_record(CarriedRecord, carried, group=record_of(carried.group)))


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
    deferred_end = head.waiting + head.deferred
    groups = [group_of(_decode_group(frame)) for frame in islice(frames, deferred_end + head.buffered)]
    carried = [_carried(_decode_carried(frame)) for frame in islice(frames, head.carried)]
    deque(frames, maxlen=0)  # to the end: their source compares its checksum there
    if (len(groups), len(carried)) != (deferred_end + head.buffered, head.carried):
        raise ValueError(f"{len(groups)} and {len(carried)} prompt groups where {head} says otherwise")
    uids = {group.uid for group in groups} | {group.uid for group in carried}
    if len(uids) != len(groups) + len(carried):
        raise ValueError("two prompt groups have one uid")
    pool = PoolState(
        waiting=tuple(groups[: head.waiting]),
        deferred=tuple(groups[head.waiting : deferred_end]),
        buffered=tuple(groups[deferred_end:]),
        carried=tuple(carried),
        ledger=head.ledger,
    )
    rest = {name: value for name, value in asdict(head).items() if name not in ("ledger", *_PARTS)}
    return RolloutState(pool=pool, **rest)


def _carried(record: CarriedRecord) -> CarriedGroup:
    return CarriedGroup(**asdict(record) | {"group": group_of(record.group)})


class KeptCheckpoints:
    """The checkpoints of this run: whole ones are deleted once newer ones are complete. verl deletes a model as soon as
    the next one is written, before the rest is.

    Args:
        folder: holds all checkpoints.
        keep: how many stay [count]; None: all.
    """

    def __init__(self, folder: Path, keep: int | None) -> None:
        self._folder = folder
        self._keep = keep
        self._saved: list[Path] = []  # oldest first

    @classmethod
    def taking_over_from_verl(cls, config: DictConfig) -> "KeptCheckpoints":
        """Take `trainer.max_actor_ckpt_to_keep` over, and have verl keep one model more, in place. A checkpoint without
        its model or its critic is of no use: all of it goes at once.
        """
        trainer, keep = config.trainer, checkpoints_to_keep(config)
        trainer.max_actor_ckpt_to_keep = trainer.max_critic_ckpt_to_keep = None if keep is None else keep + 1
        return cls(Path(trainer.default_local_dir), keep)

    def resumed(self, step: int) -> None:
        """What lies there is of this run, up to the step it resumes from."""
        self._saved = [path for path in reversed(checkpoint_folders(self._folder)) if step_of(path) <= step]

    def saved(self, folder: Path) -> None:
        """A checkpoint is complete. Those that cannot be deleted yet are tried again after the next."""
        self._saved = [path for path in self._saved if path != folder] + [folder]
        if self._keep is not None:
            surplus, kept = self._saved[: -self._keep], self._saved[-self._keep :]
            self._saved = [path for path in surplus if not _delete(path)] + kept


def _delete(folder: Path) -> bool:
    """The note that it is complete goes first."""
    try:
        if folder.exists():
            (folder / COMPLETE_FILE).unlink(missing_ok=True)
            shutil.rmtree(folder)
    except OSError as error:
        logger.warning("old checkpoint %s cannot be deleted yet: %s", folder, error)
        return False
    return True
