"""asyncio helpers: finish a clean-up whatever happens, wait for several remote calls, send many things in one, repeat
one over a connection that breaks for a moment.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from ray.exceptions import ActorUnavailableError

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

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


async def insist(
    call: Callable[[], Awaitable[T]], *, goes_on: Callable[[ActorUnavailableError], bool] = lambda _: True
) -> T:
    """Make a remote call, again while its actor cannot be reached: it may arrive twice.

    Args:
        goes_on: is asked after each such call whether to repeat it.

    Raises:
        ActorUnavailableError: where it does not go on.
    """
    while True:
        try:
            return await call()
        except ActorUnavailableError as error:
            if not goes_on(error):
                raise
        await asyncio.sleep(RECONNECT_S)


class Gathered(Generic[T, R]):
    """Calls that are made one at a time. What is added in the same turn of the event loop, or while a call is under
    way, goes together in the next one: the busier the callee, the fewer the calls.

    Args:
        call: is given all items, in order.
    """

    def __init__(self, call: Callable[[list[T]], Awaitable[R]]) -> None:
        self._call = call
        self._items: list[T] = []
        self._answer: asyncio.Future[R] | None = None  # of the call that these items go with
        self._calling: asyncio.Task[None] | None = None

    def add(self, item: T) -> None:
        """What becomes of its call is not told, but for a line in the log if it fails."""
        self._items.append(item)
        if self._calling is None:
            self._calling = asyncio.create_task(self._make_calls(), name="remote calls")

    async def ask(self, item: T) -> R:
        """What the call returns, or raises, for all items that go with this one."""
        self.add(item)
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
            self._answer.add_done_callback(lambda answer: answer.exception())  # they may all have been cancelled
        return await asyncio.shield(self._answer)

    async def _make_calls(self) -> None:
        while self._items:
            items, answer = self._items, self._answer
            self._items, self._answer = [], None
            try:
                result = await self._call(items)
            except Exception as error:
                if answer is not None:
                    answer.set_exception(error)
                else:
                    logger.warning("a call with %d items has failed: %s", len(items), error)
            else:
                if answer is not None:
                    answer.set_result(result)
        self._calling = None
