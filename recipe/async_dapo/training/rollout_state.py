"""What a checkpoint keeps of the rollout, and its plain form: msgpack frames, typed, with arrays as bytes.

The first frame holds all but the prompt groups; a frame each follows for those that wait, are deferred,
buffered, carried.
These records and those of a group are the file's format: they change only together with `checkpoint_folder.FORMAT`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from ..core.concurrency import ConcurrencyState
from ..core.ledger import Ledger
from ..core.length_bias import ObservedLengths
from ..core.over_sampling import OverSamplingState
from ..core.pool_records import CarriedGroup, PoolState
from ..core.prompt_history import PassCount
from ..core.round_size import LengthsEnded
from ..files.checkpoint_folder import DamagedCheckpoint
from ..files.plain_values import read_extension
from ..rollout.parking import with_tokens
from .group_records import Count, GroupRecord, Record, group_of, record_of


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
            over_sampling=state.over_sampling,
            ended=state.ended,
            concurrency=state.concurrency,
            lengths=state.lengths,
            history=state.history,
            waiting=len(pool.waiting),
            deferred=len(pool.deferred),
            buffered=len(pool.buffered),
            carried=len(pool.carried),
        )
    )
    for group in (*pool.waiting, *pool.deferred, *pool.buffered):
        yield _encode(record_of(with_tokens(group)))
    for carried in pool.carried:
        yield _encode(
            CarriedRecord(
                group=record_of(carried.group),
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
    deferred_end = head.waiting + head.deferred
    groups = [group_of(_decode_group(frame)) for frame in islice(frames, deferred_end + head.buffered)]
    carried = [_carried(_decode_carried(frame)) for frame in frames]
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
    return RolloutState(
        pool=pool,
        over_sampling=head.over_sampling,
        ended=head.ended,
        concurrency=head.concurrency,
        lengths=head.lengths,
        history=head.history,
    )


def _carried(record: CarriedRecord) -> CarriedGroup:
    return CarriedGroup(
        group=group_of(record.group),
        oldest_version=record.oldest_version,
        newest_version=record.newest_version,
        generated_tok=record.generated_tok,
    )
