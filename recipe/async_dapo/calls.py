"""What agent loops and tools of your own import: `await recorded(function, ...)`, a call that is made once.

    loop --recorded--> journal of the trajectory --not there--> a task of its own in this worker
                            ^                                        |
                            +-------- the result, when it arrives ---+   (the stop ends the loop, not this task)

`extensions/agents` has the journal, and does the same for verl's tools. In a copy without it a call is made again where
its loop runs again.
"""

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from .recording import current_recorder

F = TypeVar("F", bound=Callable[..., Any])

running_call_id: ContextVar[str] = ContextVar("running_call_id", default="")


class WhenUnknown(StrEnum):
    """What becomes of a call of which it is not known whether it happened."""

    RETRY = "retry"
    FAIL_TRAJECTORY = "fail_trajectory"


class RecordedError(Exception):
    """What a recorded call has raised: its text, cut at verl's `multi_turn.max_tool_response_length`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is done about a call that may have happened in a process that is gone.

    Attributes:
        recover: given the call's id, returns its result, or raises LookupError if the call never arrived.
    """

    when_unknown: WhenUnknown = WhenUnknown.RETRY
    recover: Callable[[str], Any] | None = None

    @classmethod
    def of(cls, tool: Any) -> "Policy":
        """What a tool, or a function, says of itself."""
        when_unknown = WhenUnknown(getattr(tool, "when_unknown", WhenUnknown.RETRY))
        return cls(when_unknown=when_unknown, recover=getattr(tool, "recover", None))


RETRY = Policy()


def unknown_calls(when_unknown: str, recover: Callable[[str], Any] | None = None) -> Callable[[F], F]:
    """Decorates a function that is called by `recorded`, or is a tool: what becomes of a call that may have happened.

    Args:
        when_unknown: `retry`, or `fail_trajectory`.
        recover: asked first, with the call's id; see `Policy`.
    """

    def mark(function: F) -> F:
        function.when_unknown = WhenUnknown(when_unknown)  # type: ignore[attr-defined]
        if recover is not None:
            function.recover = recover  # type: ignore[attr-defined]
        return function

    return mark


def call_id() -> str:
    """Of the recorded call that this runs in: the same whenever it is made again, so that a service can tell."""
    return running_call_id.get()


async def recorded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)`, awaited if need be: made once and answered from the record when the loop runs again.

    Arguments and result must be plain: numbers, text, bytes, lists, tuples, dicts, arrays, tensors. A plain function
    runs on the event loop.

    Raises:
        RecordedError: if the call raised.
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    make = functools.partial(function, *args, **kwargs)
    return await make_recorded(name, {"args": list(args), "kwargs": kwargs}, make, policy=Policy.of(function))


async def make_recorded(
    name: str, arguments: dict[str, Any], make: Callable[[], Any], *, policy: Policy = RETRY
) -> Any:
    """As `recorded`, with a name and arguments of its own; outside of a trajectory the call is simply made."""
    recorder = current_recorder.get()
    if recorder is None or recorder.runner is None:
        result = make()
        return await result if inspect.isawaitable(result) else result
    return await recorder.runner.run(recorder, name.replace("/", "_"), arguments, make, policy=policy)
