"""An asyncio loop on virtual time: the clock jumps to the next timer, so that an hour passes in milliseconds.

When every task waits and no timer is pending, nothing can ever happen again: `Deadlock`. A simulation also fails when
it leaves a task behind, and when a task ends with an error that nobody looks at.
"""

import asyncio
import gc
import inspect
import io
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

REMOTE = "remote"  # name of the tasks that stand for calls in another process; they may outlive their caller


class Deadlock(AssertionError):
    """All tasks wait for each other."""


class Orphans(AssertionError):
    """A simulation ended while tasks of it were still running."""


class _VirtualClock:
    """The loop's selector: instead of waiting for files, it moves the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def select(self, timeout_s: float | None) -> list[Any]:
        if timeout_s is None:
            raise Deadlock(f"every task waits and no timer is pending, {self.now_s} s into the simulation")
        self.now_s += timeout_s
        return []


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """Runs what is ready, then jumps to the next timer. Has no files, sockets, signals or threads."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _VirtualClock()
        self._clock_resolution = 1e-9
        self.errors: list[str] = []
        self.set_exception_handler(self._note_error)

    def time(self) -> float:
        return self._selector.now_s

    def _process_events(self, events: list[Any]) -> None:
        assert not events

    def _write_to_self(self) -> None:
        """Nothing sleeps in a system call, so nothing has to be woken."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise AssertionError("threads have no virtual time")

    def _note_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")


def simulate(main: Coroutine[Any, Any, T], *, loop_class: type[VirtualTimeLoop] = VirtualTimeLoop) -> T:
    """Run `main` on a fresh loop of virtual time.

    Raises:
        Deadlock: when nothing can ever happen again; names what every task waits for.
        Orphans: when `main` ends and leaves tasks running, other than remote calls.
    """
    loop = loop_class()
    asyncio.set_event_loop(loop)
    try:
        try:
            result = loop.run_until_complete(main)
        except Deadlock as deadlock:
            raise Deadlock(f"{deadlock}\n{_stacks(asyncio.all_tasks(loop))}") from None
        orphans = {task for task in asyncio.all_tasks(loop) if not task.get_name().startswith(REMOTE)}
        if orphans:
            raise Orphans(f"tasks left behind:\n{_stacks(orphans)}")
    finally:
        end_all(loop)
    gc.collect()  # an error that nobody looked at is reported when its task is collected
    assert not loop.errors, loop.errors
    return result


def at_each(values: Iterable[Any]) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Runs a test with each of these values as its last parameter, on a loop of its own; with every fourth in the fast
    tier.
    """
    tried = list(values)[:: 4 if os.environ.get("HYPOTHESIS_PROFILE") == "few" else 1]

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        *fixtures, last = inspect.signature(test).parameters.values()

        def run(**given: Any) -> None:
            for value in tried:
                simulate(test(**given, **{last.name: value}))

        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        run.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
        return run

    return decorate


def now_s() -> float:
    """Virtual seconds since the start of the simulation."""
    return asyncio.get_running_loop().time()


async def settle() -> None:
    """Let everything happen that happens without the clock moving on."""
    await asyncio.sleep(1e-6)


class Suspensions(Awaitable[T]):
    """Awaits a coroutine, counts the points where it waits, and cancels it at chosen ones.

    The cancellation arrives exactly at that await: `cancel_at={k}` is the k-th wait, counted from 0, including waits of
    the clean-up that an earlier cancellation has started.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], *, cancel_at: frozenset[int] = frozenset()) -> None:
        self._coroutine = coroutine
        self._cancel_at = cancel_at
        self.count = 0

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        while True:
            try:
                waiting_for = step()
            except StopIteration as stop:
                return stop.value
            if self.count in self._cancel_at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            self.count += 1
            try:
                yield waiting_for
            except BaseException as error:  # thrown in by the task: goes on into the coroutine
                thrown = error
                step = lambda: self._coroutine.throw(thrown)  # noqa: B023, E731
            else:
                step = lambda: self._coroutine.send(None)  # noqa: E731


def end_all(loop: VirtualTimeLoop) -> None:
    """Cancel what still runs, and what its clean-up starts, and close the loop."""
    for _ in range(10):
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            break
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks, timeout=3600.0))
    loop.run_until_complete(loop.shutdown_asyncgens())
    asyncio.set_event_loop(None)
    loop.close()


def _stacks(tasks: set[asyncio.Task[Any]]) -> str:
    text = io.StringIO()
    for task in sorted(tasks, key=asyncio.Task.get_name):
        task.print_stack(file=text)
    return text.getvalue()
