"""verl's tools as its agent loops get them here: each call is made once, however often the loop runs."""

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from verl.tools.base_tool import BaseTool
from verl.tools.function_tool import FunctionTool, normalize_function_tool_return
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from ...calls import make_recorded
from ...config.values import ConfigError
from ...core.users_errors import Cause, TrajectoryFailed
from ...record.plain_values import AGENT_LOOP
from ...recording import current_recorder
from ...rollout.codec import PROMPTS_ONLY
from ...runtime.containment import value_of
from ...runtime.time_limit import LimitReached, within
from ..agents.call_recorder import CallRecorder
from ..agents.call_runner import on_thread, plain_bytes
from ..agents.journal import Policy

logger = logging.getLogger(__name__)

T = TypeVar("T")

TOOL_THREADS = 64  # of a worker: plain functions that run at once; none is taken from verl's tokenization
MOST_THREADS = 1000  # of a worker: with those whose time was up, and which never return


def recorded_tools(tools: list[Any], *, timeout_s: float) -> list[Any]:
    """The same tools, recorded.

    Args:
        timeout_s: longest time to release an instance [s]; calls have limits of their own.
    """
    threads = _Threads()
    return [
        RecordedFunction.of(one, threads) if isinstance(one, FunctionTool) else RecordedTool(one, timeout_s=timeout_s)
        for one in tools
    ]


class _Threads:
    """The threads of a worker's plain functions. One that never returns keeps its thread, and no slot."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(TOOL_THREADS)
        self._running: set[tuple[str, object]] = set()  # the tool of each

    async def run(self, name: str, function: Callable[[], T]) -> T:
        """What the function of the tool of this name returns.

        Raises:
            ConfigError: when too many have not returned, naming the tool that has the most of them.
        """
        async with self._slots:
            if len(self._running) >= MOST_THREADS:
                [(slowest, calls)] = Counter(of for of, _ in list(self._running)).most_common(1)
                what = f"{calls} calls have not returned, though async_dapo.calls.timeout_s has passed"
                raise ConfigError(AGENT_LOOP, f"tool {slowest}", f"{what}: give what this function waits for a limit")
            return await on_thread(self._counted, name, function)

    def _counted(self, name: str, function: Callable[[], T]) -> T:
        running = (name, object())
        self._running.add(running)
        try:
            return function()
        finally:
            self._running.discard(running)


class RecordedFunction(FunctionTool):
    """A function as a tool."""

    _threads: _Threads

    @classmethod
    def of(cls, tool: FunctionTool, threads: _Threads) -> "RecordedFunction":
        made = cls(name=tool.name, fn=tool.fn, tool_schema=tool.tool_schema, is_async=tool.is_async)
        made._threads = threads
        return made

    async def call(self, parameters: dict[str, Any]) -> Any:
        """What the function returns, if that is text or a dict; else verl's triple of it."""
        make = functools.partial(self._execute, parameters)
        answer = await make_recorded(self.name, parameters, make, about=self.fn)
        return _triple(answer) if isinstance(answer, list) else answer

    async def _execute(self, parameters: dict[str, Any]) -> Any:
        if self.is_async:
            raw = await self.fn(**parameters)
        else:
            raw = await self._threads.run(self.name, functools.partial(self.fn, **parameters))
        return raw if isinstance(raw, str | dict) else plain_answer(*normalize_function_tool_return(raw))


@dataclass(slots=True)
class _Instance:
    """Of a tool, as the running loop knows it."""

    create: dict[str, Any]  # arguments
    calls: int = 0


class RecordedTool(BaseTool):
    """A tool with instances. An instance lives in one worker: where the loop goes on in another, or later, it is
    created again. One that has been called cannot be: it is gone with what it knew, and its trajectory fails.
    """

    def __init__(self, tool: BaseTool, *, timeout_s: float) -> None:
        self._tool = tool
        self._timeout_s = timeout_s
        self.config, self.tool_schema, self.name = tool.config, tool.tool_schema, tool.name
        Policy.of(tool)  # what it says of itself is right
        self._instances: dict[str, _Instance] = {}
        self._live: dict[str, str] = {}  # the loop's name of an instance -> the tool's
        self._busy: Counter[str] = Counter()  # calls under way
        self._going_on: set[asyncio.Task[Any]] = set()  # whatever becomes of what waits for them
        self._warned_of: set[str] = set()  # fields in which it has left what no record can hold

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return self._tool.get_openai_tool_schema()

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        recorder = current_recorder.get()
        named = {} if instance_id is None else {"instance_id": instance_id}

        async def make() -> list[Any]:
            made_id, response = await self._create(**named, **kwargs)
            self._live[made_id] = made_id
            if isinstance(recorder, CallRecorder) and recorder.rests and recorder.kept_loop is None:
                await self._end(made_id)  # nothing is left that would release it
            return [made_id, response.model_dump(exclude_none=True)]

        made_id, response = await make_recorded(f"{self.name}.create", {**named, "kwargs": kwargs}, make)
        self._instances[made_id] = _Instance(kwargs)
        return made_id, ToolResponse(**response)

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], *, agent_data: Any = None, **kwargs: Any
    ) -> tuple[ToolResponse, float, dict]:
        """What the tool leaves in `agent_data.extra_fields`, verl's place for it, is a part of its answer."""
        shared = SharedFields({}) if agent_data is None else SharedFields.of(agent_data.extra_fields)
        is_made_here = False

        async def make(own_id: str) -> list[Any]:
            nonlocal is_made_here
            is_made_here = True
            before = shared.encoded()
            response = await self._tool.execute(own_id, parameters, agent_data=agent_data, **kwargs)
            plain, (left, made_live) = plain_answer(*response), shared.end_call(before)
            for name in made_live - self._warned_of:
                self._warned_of.add(name)
                what = "which no record can hold: where a loop runs again, and where it has ended, it is gone"
                logger.warning("tool %s keeps %s in agent_data.extra_fields, %s", self.name, name, what)
            return [*plain, *left]

        answer = await self._call("execute", instance_id, {"parameters": parameters}, make)
        if not is_made_here and len(answer) > 3:  # what a tool's `recover` returns says nothing of them
            shared.replay(*answer[3:])
        return _triple(answer[:3])

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        async def make(own_id: str) -> float:
            return await self._tool.calc_reward(own_id, **kwargs)

        return await self._call("calc_reward", instance_id, {}, make)

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self._instances.pop(instance_id, None)
        if not self._busy[instance_id]:  # else the call that is under way does it
            await self._end(instance_id, **kwargs)

    async def _call(
        self, method: str, instance_id: str, arguments: dict[str, Any], make: Callable[[str], Awaitable[Any]]
    ) -> Any:
        instance = self._instances.setdefault(instance_id, _Instance({}))
        is_first, instance.calls = instance.calls == 0, instance.calls + 1

        async def make_alive() -> Any:
            self._busy[instance_id] += 1
            try:
                if instance_id not in self._live:
                    if not is_first:
                        what = f"an instance of tool {self.name} is gone, with what it knew of earlier calls"
                        raise TrajectoryFailed("state_lost", Cause(what))
                    self._live[instance_id], _ = await self._create(instance_id, **instance.create)
                return await make(self._live[instance_id])
            finally:
                self._busy[instance_id] -= 1
                if not self._busy[instance_id]:
                    del self._busy[instance_id]
                    if instance_id not in self._instances:  # released meanwhile
                        await self._end(instance_id)

        asked = {"instance": instance_id, **arguments}
        return await make_recorded(f"{self.name}.{method}", asked, make_alive, about=self._tool)

    async def _create(self, *args: Any, **kwargs: Any) -> tuple[str, ToolResponse]:
        """An instance of the tool; it is released if nothing waits for it any more."""
        making = self._go_on(within(self._timeout_s, value_of(functools.partial(self._tool.create, *args, **kwargs))))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._go_on(self._release_unused(making))
            raise

    async def _release_unused(self, making: asyncio.Task[tuple[str, ToolResponse]]) -> None:
        with suppress(LimitReached):
            own_id, _ = await making
            await self._release(own_id)

    async def _end(self, instance_id: str, **kwargs: Any) -> None:
        """Release it, also if what waits for that is interrupted: it would not be repeated."""
        own_id = self._live.pop(instance_id, None)
        if own_id is not None:
            await asyncio.shield(self._go_on(self._release(own_id, **kwargs)))

    async def _release(self, own_id: str, **kwargs: Any) -> None:
        try:
            await within(self._timeout_s, value_of(functools.partial(self._tool.release, own_id, **kwargs)))
        except LimitReached:
            limit_s = self._timeout_s
            logger.warning("tool %s: release took longer than async_dapo.calls.timeout_s=%s", self.name, limit_s)

    def _go_on(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """In a task that no stop ends; asyncio logs an error that nothing waits for."""
        task = asyncio.create_task(work, name=f"call of tool {self.name}")
        self._going_on.add(task)
        task.add_done_callback(self._going_on.discard)
        return task


@dataclass(slots=True)
class SharedFields:
    """verl's `agent_data.extra_fields`, in which tools leave what they know of earlier calls, in one run of a loop.

    Parallel calls share them. What a call leaves is recorded with the number of its end among all ends, since a replay
    answers calls in the order in which the loop makes them.
    """

    fields: dict[str, Any]
    live: set[str] = field(default_factory=set)  # names of values that tools have left and no record can hold
    _ends: int = 0  # calls that have ended
    _left_at: dict[str, int] = field(default_factory=dict)  # the number of the end that has changed a field last

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "SharedFields":
        """The same for all calls of a run that share these fields."""
        recorder = current_recorder.get()
        if not isinstance(recorder, CallRecorder):
            return cls(fields)
        shared: SharedFields = recorder.shared_fields.setdefault(id(fields), cls(fields))
        return shared

    def encoded(self) -> dict[str, bytes | None]:
        """None for a value that no record can hold."""
        return {name: _encoded(value) for name, value in self.fields.items()}

    def end_call(self, before: dict[str, bytes | None]) -> tuple[tuple[int, dict[str, Any], list[str]], set[str]]:
        """What a call has left that began with these fields.

        Returns:
            For the record, the number of its end, the values that it has changed, and the names that it has removed;
            and the names under which it has left what no record can hold.
        """
        self._ends += 1
        after = self.encoded()
        changed = [name for name, value in after.items() if value is not None and value != before.get(name)]
        removed = [name for name, value in before.items() if value is not None and after.get(name) is None]
        self._left_at |= dict.fromkeys([*changed, *removed], self._ends)
        made_live = {name for name, value in after.items() if value is None and before.get(name, b"") is not None}
        self.live |= made_live
        return (self._ends, {name: self.fields[name] for name in changed}, removed), made_live

    def replay(self, end: int, changed: dict[str, Any], removed: list[str]) -> None:
        """Bring the fields to where a recorded call has left them, but for those that a later end has changed."""
        self._ends = max(self._ends, end)
        for name in [name for name in (*changed, *removed) if self._left_at.get(name, 0) < end]:
            self._left_at[name] = end
            self.fields.pop(name, None)
            if name in changed:
                self.fields[name] = changed[name]

    def drop_live(self, fields: dict[str, Any]) -> None:
        """Leave out of an output's fields what tools have left and no record can hold."""
        for name in self.live & fields.keys():
            if _encoded(fields[name]) is None:
                del fields[name]


def _encoded(value: Any) -> bytes | None:
    """None of what no record can hold."""
    try:
        return plain_bytes({"": value})
    except ConfigError:
        return None


def plain_answer(response: ToolResponse, reward: float, metrics: dict) -> list[Any]:
    """An answer as the journal has it: the fields of the response, reward and metrics.

    Raises:
        ConfigError: for one with a picture or video.
    """
    if response.image or response.video:
        raise ConfigError(AGENT_LOOP, "tool", f"has answered with a picture or video: {PROMPTS_ONLY}")
    return [response.model_dump(exclude_none=True), reward, metrics]


def _triple(answer: list[Any]) -> tuple[ToolResponse, float, dict]:
    response, reward, metrics = answer
    return ToolResponse(**response), reward, metrics
