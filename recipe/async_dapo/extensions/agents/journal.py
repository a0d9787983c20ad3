"""What an agent loop has asked of anything but the model: calls of tools, environments, rewards, and their results.

A call is written down before it is made, and its result when it arrives; a call that scores only when a stop interrupts
it. When the loop runs again, a call with a result is answered from here, so it is made once. One that was interrupted
goes on meanwhile, and is `pending`. One that has neither was under way when its process ended: whether it happened is
unknown, and its tool says what to do.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import ray

from ...calls import WhenUnknown
from ...core.trajectory import Suspension, Trajectory

SCORE = "score"  # ends the ids of calls that score; a number ends those of a loop
FETCH_TIMEOUT_S = 300.0  # of a result that is there

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bool, list[tuple[str, int, bytes, bytes | None]]]).decode


def name_of(call_id: str) -> str:
    """What is called; of many trajectories it is the same."""
    return call_id.split("/")[-3]


@dataclass(slots=True, kw_only=True)
class Call:
    """One call. Arguments and result are plain data."""

    call_id: str  # the same whenever the loop comes to this place with the same tokens
    turn: int  # turns that had begun before it
    arguments: bytes
    result: bytes | None = None
    pending: Any = None  # a reference, by which its result will arrive while it runs on without its trajectory

    @property
    def name(self) -> str:
        return name_of(self.call_id)

    @property
    def is_score(self) -> bool:
        return self.call_id.endswith(f"/{SCORE}")

    @property
    def size_bytes(self) -> int:
        return len(self.arguments) + len(self.result or b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is done about a call that may have happened in a process that is gone.

    Attributes:
        recover: given the call's id, returns its result, or raises LookupError if the call never arrived.
    """

    when_unknown: WhenUnknown
    recover: Callable[[str], Any] | None

    @classmethod
    def of(cls, tool: Any) -> "Policy":
        """What a tool, or a function, says of itself."""
        when_unknown = WhenUnknown(getattr(tool, "when_unknown", WhenUnknown.RETRY))
        return cls(when_unknown=when_unknown, recover=getattr(tool, "recover", None))


@dataclass(slots=True, kw_only=True)
class Journal:
    """The calls of a trajectory, and where its loop rests over a stop: its `Attachment`."""

    calls: dict[str, Call] = field(default_factory=dict)  # by their ids, in order
    suspension: Suspension | None = None
    is_replayable: bool = True  # else only its own loop, alive, can go on with what is recorded

    @classmethod
    def of(cls, trajectory: Trajectory) -> "Journal":
        if trajectory.attachment is None:
            trajectory.attachment = cls()
        assert isinstance(trajectory.attachment, cls)
        return trajectory.attachment

    @property
    def has_begun(self) -> bool:
        return bool(self.calls) or self.suspension is not None

    @property
    def is_needed(self) -> bool:
        """Not for scores alone: what was interrupted is just scored again."""
        return not self.is_replayable or not all(call.is_score for call in self.calls.values())

    @property
    def size_bytes(self) -> int:
        return sum(call.size_bytes for call in self.calls.values())

    def copied(self) -> "Journal":
        return replace(self, calls={call_id: copy(call) for call_id, call in self.calls.items()})

    def without_content(self) -> "Journal":
        calls = self.calls.items()
        return replace(
            self, calls={one: replace(call, arguments=b"", result=None, pending=None) for one, call in calls}
        )

    def to_bytes(self) -> bytes:
        self._take_arrived()
        calls = [(call.call_id, call.turn, call.arguments, call.result) for call in self.calls.values()]
        return _encode((self.is_replayable, calls))

    def _take_arrived(self) -> None:
        """A call that is still under way stays without a result: after a crash what it came to is unknown."""
        pending = {call.pending: call for call in self.calls.values() if call.pending is not None}
        if pending:
            ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
            for reference in ready:
                pending[reference].result = ray.get(reference, timeout=FETCH_TIMEOUT_S)


def from_bytes(data: bytes) -> Journal:
    """
    Raises:
        msgspec.MsgspecError: if it is none.
    """
    is_replayable, calls = _decode(data)
    read = (Call(call_id=one, turn=turn, arguments=asked, result=result) for one, turn, asked, result in calls)
    return Journal(is_replayable=is_replayable, calls={call.call_id: call for call in read})
