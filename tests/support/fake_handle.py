"""An actor handle that behaves as Ray's does, for an object in this process."""

import asyncio
import pickle
import traceback
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from .simulation import REMOTE

_references: WeakValueDictionary[int, Any] = WeakValueDictionary()


class Reference:
    """The same object wherever it is sent."""

    def __reduce__(self) -> tuple[Any, ...]:
        _references[id(self)] = self
        return _referenced, (id(self),)


def _referenced(key: int) -> Any:
    return _references[key]


def sent(value: Any) -> Any:
    """A copy of what goes to another process."""
    return pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


class RemoteCall(Reference, Awaitable[Any]):
    """What `.remote()` returns. The call goes on whether or not somebody awaits it or stops awaiting it."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # an error nobody awaits is Ray's

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._result().__await__()

    @property
    def is_done(self) -> bool:
        return self._task.done()

    async def _result(self) -> Any:
        await asyncio.wait([self._task])
        return sent(self._task.result())


class FakeHandle(Reference):
    """`handle.method.remote(...)` calls `target.method` as an async Ray actor would.

    Arguments and results are copies; a killed actor fails every call, begun or
    not, with `ActorDiedError`, one that is cut off with `ActorUnavailableError`;
    an error of the method arrives as `RayTaskError`.

    Args:
        target: the object behind the handle.
        latency_s: time a call takes to reach the actor, and its answer to come back [s]. If it
            depends on the method, calls overtake each other, as Ray allows them to.
    """

    def __init__(self, target: Any, *, latency_s: float | Callable[[str], float] = 0.0) -> None:
        self.target = target
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.latency_s = latency_s
        self._is_dead = False
        self._reachable_at_s = 0.0
        self._broken: asyncio.Future[None] | None = None

    def __getattr__(self, name: str) -> "_Method":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Method(self, name)

    @property
    def is_dead(self) -> bool:
        return self._is_dead

    def kill(self) -> None:
        self._is_dead = True
        self._break()

    def cut_off(self, seconds: float) -> None:
        """For that long no call reaches the actor; those under way go on there, and their answers are lost."""
        self._reachable_at_s = asyncio.get_running_loop().time() + seconds
        self._break()
        self._broken = None

    def _break(self) -> None:
        if not self._connection_broken.done():
            self._connection_broken.set_result(None)

    @property
    def _connection_broken(self) -> asyncio.Future[None]:
        if self._broken is None:
            self._broken = asyncio.get_event_loop().create_future()
        return self._broken

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteCall:
        args, kwargs = sent((args, kwargs))
        self.calls.append((method, args, kwargs))
        latency_s = self.latency_s(method) if callable(self.latency_s) else self.latency_s
        loop = asyncio.get_event_loop()  # also set while it is not running: a trainer is synchronous
        call = self._run(method, args, kwargs, latency_s=latency_s)
        return RemoteCall(loop.create_task(call, name=f"{REMOTE} {type(self.target).__name__}.{method}"))

    async def _run(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, latency_s: float) -> Any:
        if asyncio.get_running_loop().time() < self._reachable_at_s:
            raise ActorUnavailableError("cut off", None)
        work = asyncio.ensure_future(self._work(method, args, kwargs, latency_s=latency_s))
        work.set_name(f"{REMOTE} work")
        broken = self._connection_broken
        try:
            await asyncio.wait([work, broken], return_when=asyncio.FIRST_COMPLETED)
            if self._is_dead:
                raise ActorDiedError()
            if broken.done():
                work.add_done_callback(lambda done: done.cancelled() or done.exception())
                work = None
                raise ActorUnavailableError("cut off", None)
            return work.result()
        finally:
            if work is not None:
                work.cancel()

    async def _work(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, latency_s: float) -> Any:
        if latency_s:
            await asyncio.sleep(latency_s)
        try:
            result = getattr(self.target, method)(*args, **kwargs)
            if asyncio.iscoroutine(result):
                result = await result
        except Exception as error:
            raise RayTaskError(method, traceback.format_exc(), error).as_instanceof_cause() from None
        if latency_s:
            await asyncio.sleep(latency_s)
        return result


@dataclass(frozen=True, slots=True)
class _Method:
    handle: FakeHandle
    name: str

    def remote(self, *args: Any, **kwargs: Any) -> RemoteCall:
        return self.handle.call(self.name, args, kwargs)
