"""What an agent loop has asked of anything but the model: calls of tools, environments, rewards, and their results.

`extensions/agents` writes a call down before it is made, and its result when it arrives; a call that scores only when a
stop interrupts it. When the loop runs again, a call with a result is answered from here, so it is made once. One that
was interrupted goes on meanwhile, and is `pending`. One that has neither was under way when its process ended: whether
it happened is unknown, and its tool says what to do.
"""

from dataclasses import dataclass, replace
from typing import Any

SCORE = "score"  # ends the ids of calls that score; a number ends those of a loop


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
    pending: Any = None  # where its result will arrive while it runs on without its trajectory; opaque to core

    @property
    def name(self) -> str:
        return name_of(self.call_id)

    @property
    def is_score(self) -> bool:
        return self.call_id.endswith(f"/{SCORE}")

    @property
    def size_bytes(self) -> int:
        return len(self.arguments) + len(self.result or b"")

    @property
    def without_content(self) -> "Call":
        return replace(self, arguments=b"", result=None, pending=None)
