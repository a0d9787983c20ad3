"""A time limit on code of the user's, which may have time limits of its own, catch a cancellation, or cancel itself."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class LimitReached(Exception):
    """Our own limit: what was awaited may raise a `TimeoutError`, too."""


async def within(limit_s: float | None, awaitable: Awaitable[T]) -> T:
    """Await it for at most so long, then cancel it. None: there is no limit.

    Raises:
        LimitReached: if it takes longer.
        RuntimeError: if it cancels itself: that is no interruption of what awaits it.
    """
    limit, task = asyncio.timeout(limit_s), asyncio.current_task()
    try:
        async with limit:
            return await awaitable
    except asyncio.CancelledError as cancelled:
        if task is None or task.cancelling():
            raise
        raise RuntimeError(f"cancelled from within {cancelled}".rstrip()) from cancelled
    except Exception as error:  # whatever it made of being cancelled
        if limit.expired():
            raise LimitReached from error
        raise
