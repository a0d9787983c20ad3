"""Whatever code of the user's raises ends at its call, as an error like others: tools, agent loops, rewards, data sets.

`SystemExit` and `KeyboardInterrupt` of a task end the thread of its event loop without a word, and `GeneratorExit`
passes by every `except Exception`. So each is made a `CodeExited` where the recipe, or an event loop, calls such code:

    with contained():                 a plain function
    called_on_thread(function)        the same on a thread, for a future
    await value_of(make)              what a plain or a coroutine function returns
    contain_tasks()                   every task of an actor's event loops, and what these run on threads, also where
                                      the user's code asks for it

What goes through: a cancellation, what a signal has asked for (`Interrupted`), and how Ray ends a process.
"""

import asyncio
import gc
import inspect
import logging
import os
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

EXIT_CODE = 70  # of an actor whose event loop has ended
LOOP_THREAD = "AsyncIO Thread"  # how Ray names those of event loops


class CodeExited(Exception):
    """Code of the user's has raised what is no `Exception`, such as `SystemExit(3)`: this is its text."""

    def __repr__(self) -> str:
        return str(self)


class Interrupted(KeyboardInterrupt):
    """A signal asks this process to stop what it does."""


def _contained(error: BaseException) -> BaseException:
    """The error itself, or what takes its place, with its traceback."""
    is_meant = isinstance(error, Exception | asyncio.CancelledError | Interrupted)
    if is_meant or hasattr(error, "ray_terminate_msg"):  # Ray's own mark
        return error
    exited = CodeExited(repr(error)).with_traceback(error.__traceback__)
    exited.__cause__ = error
    return exited


@contextmanager
def contained() -> Iterator[None]:
    """For plain code of the user's; nothing is awaited in it.

    Raises:
        CodeExited: in place of what is no `Exception`.
    """
    try:
        yield
    except BaseException as error:
        if (told := _contained(error)) is error:
            raise
        raise told from error


def called_on_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """What the user's function returns, for a future of asyncio. None of these can hold `StopIteration`: what waits for
    one would wait for ever.

    Raises:
        CodeExited: in place of what is no `Exception`.
        RuntimeError: in place of `StopIteration`, with its text.
    """
    try:
        with contained():
            return function(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError(repr(error)).with_traceback(error.__traceback__) from error


async def value_of(make: Callable[[], Any]) -> Any:
    """What the user's function returns, awaited if need be.

    Raises:
        CodeExited: in place of what is no `Exception`.
    """
    with contained():
        result = make()
    return await Contained(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


class Contained(Coroutine[Any, Any, T]):
    """A coroutine that raises `CodeExited` in place of what is no `Exception`. One that is closed is left alone: only
    there `GeneratorExit` is Python's own.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T] | Generator[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __getattr__(self, name: str) -> Any:
        """Frames, for those who print stacks."""
        return getattr(self._coroutine, name)

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> "Contained[T]":
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        try:
            return self._coroutine.send(value)
        except BaseException as error:
            if (told := _contained(error)) is error:
                raise
            raise told from error

    def throw(self, *error: Any) -> Any:
        try:
            return self._coroutine.throw(*error)
        except BaseException as raised:
            if (told := _contained(raised)) is raised:
                raise
            raise told from raised

    def close(self) -> None:
        self._coroutine.close()


def contain_tasks(actor: Any = None) -> None:
    """Of the event loops of this process, an actor's: no task ends its loop, nothing waits for ever for a thread of its
    that has ended, and the process ends with a loop.

    Else the actor would live on, answer Ray's own calls, which have a thread of their own, and nothing else.

    Args:
        actor: as Ray passes it to what it calls in an actor, on that other thread.
    """
    for loop in [one for one in gc.get_objects() if isinstance(one, asyncio.AbstractEventLoop)]:
        if loop.is_running():
            loop.set_task_factory(_contained_task)
            loop.set_default_executor(_Threads(thread_name_prefix="asyncio"))
    threading.excepthook = _end_with_event_loop


class _Threads(ThreadPoolExecutor):
    """Where an event loop runs plain functions, such as verl's reward managers those of the user's."""

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return super().submit(called_on_thread, function, *args, **kwargs)


def _contained_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(Contained(coroutine), loop=loop, **options)


def _end_with_event_loop(ended: threading.ExceptHookArgs) -> None:
    """End this process if the thread that has ended is one of Ray's event loops: `SystemExit` in a callback ends it."""
    if ended.thread is None or not ended.thread.name.startswith(LOOP_THREAD):
        threading.__excepthook__(ended)
        return
    what = "".join(traceback.format_exception(ended.exc_type, ended.exc_value, ended.exc_traceback))
    logger.critical("the event loop of this process has ended, and this process with it:\n%s", what)
    logging.shutdown()
    os._exit(EXIT_CODE)


def first_line(error: BaseException) -> str:
    """The first line of what went wrong at the bottom, and where in a file."""
    while error.__cause__ is not None:
        error = error.__cause__
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}{where}"
