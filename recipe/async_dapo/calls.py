"""What agent loops and tools of your own import: `await recorded(function, ...)`, a call that is made once.

In a copy without `extensions/agents` it is made again where its loop runs again.
"""

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
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


def unknown_calls(when_unknown: str, recover: Callable[[str], Any] | None = None) -> Callable[[F], F]:
    """Decorates a function that is called by `recorded`, or is a tool: what becomes of a call that may have happened.

    Args:
        when_unknown: `retry`, or `fail_trajectory`.
        recover: asked first, with the call's id: returns its result, or raises LookupError if it never arrived.
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
    return await make_recorded(name, {"args": list(args), "kwargs": kwargs}, make, about=function)


async def make_recorded(name: str, arguments: dict[str, Any], make: Callable[[], Any], *, about: Any = None) -> Any:
    """As `recorded`, with a name and arguments of its own; outside of a trajectory the call is simply made. `about` is
    what may be marked by `unknown_calls`.
    """
    recorder = current_recorder.get()
    if recorder is None or recorder.runner is None:
        result = make()
        return await result if inspect.isawaitable(result) else result
    return await recorder.runner.call(recorder, name.replace("/", "_"), arguments, make, about=about)
