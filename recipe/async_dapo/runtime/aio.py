"""asyncio helpers: finish a clean-up whatever happens, limit what may time out itself, wait for several remote calls,
send many things in one.
"""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")

RECONNECT_S = 1.0  # pause before an actor that could not be reached is called again


async def run_to_completion(cleanup: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
    """Await `cleanup` to its end even if the caller is cancelled meanwhile; the cancellation is raised afterwards.

    Raises:
        TimeoutError: if `cleanup` takes longer than `timeout_s`.
    """
    task = asyncio.ensure_future(asyncio.wait_for(cleanup, timeout_s))
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])  # never cancels `task`
        except asyncio.CancelledError as exc:
            interrupted = exc
    if interrupted is not None:
        raise interrupted from (None if task.cancelled() else task.exception())
    return task.result()


class LimitReached(Exception):
    """Our own limit: what was awaited may raise a `TimeoutError`, too."""


async def within(limit_s: float, awaitable: Awaitable[T]) -> T:
    """Await it for at most so long, then cancel it.

    Raises:
        LimitReached: if it takes longer.
    """
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            return await awaitable
    except Exception as error:  # whatever it made of being cancelled
        if limit.expired():
            raise LimitReached from error
        raise


async def on_thread(function: Callable[..., T], *args: Any) -> T:
    """What a plain function returns, while the event loop goes on; nothing waits for a thread that never ends."""
    result: Future[T] = Future()

    def work() -> None:
        try:
            result.set_result(function(*args))
        except BaseException as error:
            result.set_exception(error)

    result.set_running_or_notify_cancel()
    threading.Thread(target=contextvars.copy_context().run, args=[work], daemon=True).start()
    return await asyncio.wrap_future(result)


async def resolve(awaitable: Awaitable[T]) -> T:
    """Make a coroutine of any awaitable, such as a Ray object reference."""
    return await awaitable


async def await_all(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Await all; the first error cancels the others and is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(resolve(awaitable)) for awaitable in awaitables]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


class TurnBatch(Generic[T]):
    """What is added in the same turn of the event loop is sent in one call: a stop ends hundreds of requests at once.

    Args:
        send: called with all items, in order; its result is not awaited.
    """

    def __init__(self, send: Callable[[list[T]], Any]) -> None:
        self._send = send
        self._items: list[T] = []

    def add(self, item: T) -> None:
        if not self._items:
            asyncio.get_running_loop().call_soon(self._flush)
        self._items.append(item)

    def _flush(self) -> None:
        items, self._items = self._items, []
        self._send(items)
