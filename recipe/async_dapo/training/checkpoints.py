"""What a checkpoint keeps of the rollout: its state, and the state's plain form.

The plain form is msgpack frames. The first one holds all but the prompt groups and what extensions keep; a frame
follows for each of these, which may be longer than msgpack lets a value be, and then for each group that waits, is
buffered, carried. The dataclasses are the file's format, field by field, with arrays as bytes: what they hold
changes only together with `checkpoint_folder.FORMAT`. What extensions keep is theirs, and bytes here.
"""

from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from itertools import islice, pairwise
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from verl.experimental.agent_loop import AgentLoopOutput

from ..config.extensions import AGENTS, of_copy
from ..core.concurrency import ConcurrencyState
from ..core.outcome import CarriedGroup
from ..core.over_sampling import LengthsEnded, OverSamplingState
from ..core.pool import PoolState
from ..core.trajectory import PromptGroup, Segment, Trajectory, Turn
from ..record.checkpoint_folder import DamagedCheckpoint
from ..record.plain_values import AGENT_LOOP, DATA_SET, read_extension, to_plain
from ..rollout.packed_output import PackedOutput
from ..rollout.parking import with_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """The rollout between two steps."""

    pool: PoolState
    over_sampling: OverSamplingState = field(default_factory=lambda: OverSamplingState(surplus=0))
    ended: LengthsEnded = field(default_factory=LengthsEnded)
    concurrency: ConcurrencyState | None = None  # None before the first round has ended
    extensions: dict[str, bytes] = field(default_factory=dict)  # what each keeps, by their names

    @property
    def needed_extensions(self) -> tuple[str, ...]:
        """Those that can read it."""
        pool = self.pool
        groups = (*pool.waiting, *pool.buffered, *(one.group for one in pool.carried))
        attached = [one.attachment for group in groups for one in group.trajectories if one.attachment is not None]
        return (*self.extensions, *([AGENTS] if any(one.is_needed for one in attached) else ()))


T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0)]
Int32, Float32 = Annotated[array, "i"], Annotated[array, "f"]
PARTS = {"waiting": PromptGroup, "buffered": PromptGroup, "carried": CarriedGroup}

# Fields that no checkpoint holds: they name what lives in processes, or count a round's events, or say that a
# checkpoint was read.
NOT_SAVED: dict[Any, set[str]] = {
    PromptGroup: {"parked"},
    Trajectory: {"is_restored"},
    Turn: {"counts", "timed"},
}
LEFT_OUT = {"routes"}  # without router replay
# Fields whose types the dataclasses leave open.
CLOSED_TYPES: dict[Any, dict[str, Any]] = {
    Segment: {"token_ids": Int32, "rollout_log_probs": Float32},
    PackedOutput: {"prompt_ids": Int32, "response_ids": Int32, "response_logprobs": Float32},
    Trajectory: {"outputs": list[PackedOutput] | None, "attachment": bytes | None},
}


@cache
def _saved_fields(kind: Any) -> dict[str, Any]:
    """Name -> type of the fields of a dataclass that a checkpoint holds; empty for any other type."""
    if not is_dataclass(kind):
        return {}
    types = get_type_hints(kind) | CLOSED_TYPES.get(kind, {})
    return {one.name: types[one.name] for one in fields(kind) if one.name not in NOT_SAVED.get(kind, ())}


def _plain(value: Any) -> Any:
    """The dataclasses in a value as dicts of their saved fields.

    Raises:
        ConfigError: naming a value of a user's that is not plain.
    """
    if isinstance(value, PromptGroup):
        value = replace(value, prompt=to_plain(value.prompt, source=DATA_SET))
    if names := _saved_fields(value.__class__):
        held = {name: getattr(value, name) for name in names}
        if isinstance(value, Trajectory) and value.attachment is not None:
            held["attachment"] = value.attachment.to_bytes()
        plain = {name: _plain(part) for name, part in held.items() if part is not None or name not in LEFT_OUT}
        if isinstance(value, Trajectory):
            for before, blocks in reversed(_neighbours(plain["turns"])):
                blocks[:] = [None if block in before[k : k + 1] else block for k, block in enumerate(blocks)]
        return plain
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _neighbours(turns: list[dict[str, Any]]) -> list[tuple[list[bytes | None], list[bytes | None]]]:
    """Blocks of routes of each two turns, in place: None is the same block as that of the turn before."""
    return [*pairwise(turn.get("routes", {"blocks": []})["blocks"] for turn in turns)]


def _encode_hook(value: Any) -> Any:
    if not isinstance(value, AgentLoopOutput):
        return array.tobytes(value)
    # A default dict that a loop has filled does not count as set.
    rest = {name: getattr(value, name) for name in sorted(value.model_fields_set | {"extra_fields"})}
    return to_plain(rest | {"metrics": value.metrics.model_dump(exclude_unset=True)}, source=AGENT_LOOP)


_encode = msgspec.msgpack.Encoder(enc_hook=_encode_hook).encode
_decode = msgspec.msgpack.Decoder(ext_hook=read_extension).decode


def _read(kind: Any, plain: Any) -> Any:
    """The value of a type from its plain form. The dataclasses are made here, as msgspec ignores fields that they do
    not have and fills in those that are missing.

    Raises:
        Exception: of any kind, if this is the plain form of something else.
    """
    if types := _saved_fields(kind):
        if not types.keys() - LEFT_OUT <= plain.keys() <= types.keys():
            raise ValueError(f"{kind.__name__} has the fields {[*types]}, not {[*plain]}")
        if kind is Trajectory:
            for before, blocks in _neighbours(plain["turns"]):
                blocks[:] = [before[k] if block is None else block for k, block in enumerate(blocks)]
        return kind(**{name: _read(types[name], part) for name, part in plain.items()})
    if kind is AgentLoopOutput:
        return AgentLoopOutput(**plain)
    origin = get_origin(kind)
    if origin is None or plain is None:
        return msgspec.convert(plain, kind, builtin_types=(bytes,))
    arguments = get_args(kind)
    if origin is UnionType:
        return _read(arguments[0], plain)  # the other one is None
    if origin is Annotated:
        return array(arguments[1], msgspec.convert(plain, bytes, builtin_types=(bytes,)))
    if origin is dict:
        return {key: _read(arguments[1], item) for key, item in msgspec.convert(plain, dict[str, Any]).items()}
    if origin is list or arguments[1:] == (...,):
        return origin(_read(arguments[0], item) for item in msgspec.convert(plain, list[Any]))
    return msgspec.convert(plain, kind, builtin_types=(bytes,))


def to_frames(state: RolloutState) -> Iterator[bytes]:
    """The state as plain data.

    Raises:
        ConfigError: naming a value of a user's that is not plain.
    """
    parts = {part: getattr(state.pool, part) for part in PARTS}
    pool = PoolState(waiting=(), buffered=(), carried=(), ledger=state.pool.ledger)
    rest = replace(state, pool=pool, extensions=dict.fromkeys(state.extensions, b""))
    yield _encode([[*map(len, parts.values())], rest])
    yield from state.extensions.values()
    for part, groups in parts.items():
        for group in groups:
            yield _encode(_plain(group if part == "carried" else with_tokens(group)))


def from_frames(frames: Iterable[bytes]) -> RolloutState:
    """The state that was saved. Reads all frames, so that their source can compare its checksum.

    Raises:
        DamagedCheckpoint: if they are something else. No code of theirs runs.
    """
    with _damage_named():
        return _from_frames(iter(frames))


def to_bytes(value: Any) -> bytes:
    """What an extension keeps, as plain data: dataclasses, prompt groups without tokens, and what holds them."""
    return _encode(_plain(value))


def from_bytes(kind: type[T], data: bytes) -> T:
    """What `to_bytes` has made of a value of that type.

    Raises:
        DamagedCheckpoint: if it was something else. No code of it runs.
    """
    with _damage_named():
        value: T = _read(kind, _decode(data))
    return value


@contextmanager
def _damage_named() -> Iterator[None]:
    try:
        yield
    except DamagedCheckpoint:
        raise
    except Exception as error:  # whatever the bytes of another file make the readers of values raise
        raise DamagedCheckpoint(f"{type(error).__name__}: {error}") from error


def _from_frames(frames: Iterator[bytes]) -> RolloutState:
    counts, rest = _decode(next(frames, b""))
    counts, state = msgspec.convert(counts, tuple[Count, Count, Count]), _read(RolloutState, rest)
    kept = islice(frames, len(state.extensions))
    extensions = dict(zip(state.extensions, kept, strict=True))
    parts = {
        part: tuple(_read(kind, _decode(frame)) for frame in islice(frames, count))
        for (part, kind), count in zip(PARTS.items(), counts, strict=True)
    }
    groups = [one.group if isinstance(one, CarriedGroup) else one for part in parts.values() for one in part]
    read, uids = sum(counts) + sum(1 for _ in frames), {group.uid for group in groups}
    if not len(uids) == len(groups) == read:
        raise ValueError(f"{len(groups)} prompt groups with {len(uids)} uids, where {counts} were saved")
    for group in groups:
        _restore(group)
    return replace(state, pool=replace(state.pool, **parts), extensions=extensions)


def _restore(group: PromptGroup) -> None:
    """Open what extensions have attached, and mark trajectories that may have gone on after the checkpoint.

    Raises:
        Exception: of any kind, if no group could have been saved so.
    """
    if not group.trajectories:
        raise ValueError(f"prompt group {group.uid} has no trajectories")
    attachment_of = of_copy("attachment")
    for trajectory in group.trajectories:
        attached: Any = trajectory.attachment  # without the extension: start-up has refused what cannot be left out
        trajectory.attachment = attachment_of(attached) if attachment_of and attached is not None else None
        trajectory.is_restored = not trajectory.is_finished  # it may have begun after the checkpoint, too
        for output in trajectory.outputs or ():
            if not len(output.response_mask) == len(output.response_logprobs) == len(output.response_ids):
                raise ValueError("tokens, mask and log-probs of an output differ in length")
