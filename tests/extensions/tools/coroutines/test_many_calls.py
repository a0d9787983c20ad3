"""Thousands of trajectories of one worker that wait for tools at once, on a real event loop."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest
from verl.experimental.agent_loop import AgentLoopOutput
from verl.tools.function_tool import FunctionTool
from verl.tools.schemas import OpenAIFunctionToolSchema

from recipe.async_dapo.calls import recorded
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.extensions.tools import tools
from recipe.async_dapo.extensions.tools.tools import TOOL_THREADS, recorded_tools
from recipe.async_dapo.runtime.time_limit import LimitReached, within

from ....support.rollout_world import Loop, finished, group, outcome_of, rollout, scores

MANY = 2000
PATIENCE_S = 300.0  # what has not ended by then hangs
PARAMETERS = {"type": "object", "properties": {}}
SCHEMA = {"type": "function", "function": {"name": "tool", "description": "Waits.", "parameters": PARAMETERS}}


def tool(function: Any, *, is_async: bool) -> Any:
    made = FunctionTool(name="tool", fn=function, tool_schema=OpenAIFunctionToolSchema(**SCHEMA), is_async=is_async)
    return recorded_tools([made], timeout_s=60.0)[0]


async def run_all(loop: Loop) -> None:
    """All trajectories at once, in groups, as a worker does."""
    running = rollout(loop, scores(*[0.0, 1.0] * MANY))
    groups = [replace(group(), uid=f"group-{number}") for number in range(MANY // len(group().trajectories))]
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        for one in groups:
            tasks.create_task(outcome_of(running, one))


@pytest.mark.slow
def test_given_thousands_of_trajectories_in_calls_at_once_then_none_takes_a_thread() -> None:
    inside, begun = 0, set[threading.Thread]()

    async def main() -> None:
        all_inside = asyncio.Event()

        async def wait() -> str:
            nonlocal inside
            inside += 1
            if inside == MANY:
                begun.update(set(threading.enumerate()) - before)
                all_inside.set()
            await all_inside.wait()
            return "done"

        waiting = tool(wait, is_async=True)

        async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
            answer = await (recorded(wait) if trajectory.session_id % 2 else waiting.call({}))
            assert answer == "done"
            return finished(trajectory)

        before = set(threading.enumerate())
        await run_all(loop)
        assert inside == MANY and not begun

    asyncio.run(main())


@pytest.mark.slow
def test_given_thousands_of_calls_of_a_plain_function_then_a_bounded_number_of_threads_run_at_once() -> None:
    inside, most, calls = set[int](), 0, 0

    def look() -> str:
        nonlocal most, calls
        with lock:
            inside.add(threading.get_ident())
            most, calls = max(most, len(inside)), calls + 1
        with lock:
            inside.discard(threading.get_ident())
        return "done"

    lock = threading.Lock()
    plain = tool(look, is_async=False)

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        assert await plain.call({}) == "done"
        return finished(trajectory)

    asyncio.run(run_all(loop))
    assert calls == MANY and most <= TOOL_THREADS


def test_given_functions_that_never_return_when_their_calls_are_given_up_then_others_run() -> None:
    released = threading.Event()

    def look(hangs: bool) -> str:
        if hangs:
            released.wait()
        return "done"

    async def main() -> None:
        plain = tool(look, is_async=False)
        hanging = [within(0.1, plain.call({"hangs": True})) for _ in range(TOOL_THREADS)]
        ended = await asyncio.gather(*hanging, return_exceptions=True)
        assert all(isinstance(one, LimitReached) for one in ended)
        async with asyncio.timeout(PATIENCE_S):
            assert await plain.call({"hangs": False}) == "done"

    try:
        asyncio.run(main())
    finally:
        released.set()


def test_given_too_many_functions_that_never_return_then_training_ends_and_names_their_tool(monkeypatch) -> None:
    monkeypatch.setattr(tools, "MOST_THREADS", 3)
    released = threading.Event()

    async def main() -> None:
        plain = tool(released.wait, is_async=False)
        hanging = [within(0.1, plain.call({})) for _ in range(3)]
        await asyncio.gather(*hanging, return_exceptions=True)
        with pytest.raises(ConfigError, match="agent loop=tool tool: 3 calls have not returned"):
            await plain.call({})

    try:
        asyncio.run(main())
    finally:
        released.set()
