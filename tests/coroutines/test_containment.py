"""Whatever the user's code raises is an error of its call: never the end of an event loop, never silence."""

import asyncio
import gc
import logging
import re
import threading
import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.experimental.agent_loop import AgentLoopOutput
from verl.tools.function_tool import FunctionTool
from verl.tools.schemas import OpenAIFunctionToolSchema

from recipe.async_dapo.calls import RecordedError, recorded, unknown_calls
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.outcome import Verdict
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.rollout import reward_isolation
from recipe.async_dapo.rollout.agent_loops import AgentLoopFactory, KeptLoops
from recipe.async_dapo.rollout.reward_process import shortened
from recipe.async_dapo.rollout.tools import recorded_tools
from recipe.async_dapo.runtime.containment import CodeExited, Contained, Interrupted, contain_tasks, contained, value_of

from ..support.rollout_world import N, call_runner, finished, group, outcome_of, recorder, rollout, stopped_at
from ..support.simulation import settle, simulate

SCHEMA = OpenAIFunctionToolSchema(
    type="function", function={"name": "tool", "description": "", "parameters": {"type": "object", "properties": {}}}
)


@pytest.fixture(autouse=True)
def hook_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


class Own(BaseException):
    """The user's."""


exits = pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Own("a")], ids=repr)


def plain(error: BaseException, **_: Any) -> Any:
    raise error


async def awaited(error: BaseException, **_: Any) -> Any:
    await asyncio.sleep(1)
    raise error


async def gathered(error: BaseException, **_: Any) -> Any:
    """As verl's tool agent loop makes its calls."""
    return await asyncio.gather(awaited(error))


kinds = pytest.mark.parametrize("raises", [plain, awaited, gathered])


@exits
@kinds
async def test_given_a_call_that_exits_when_it_is_recorded_then_its_loop_is_told_and_it_is_counted(error, raises):
    contain_tasks()
    told: list[str] = []

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        try:
            await recorded(partial(raises, error))
        except RecordedError as answer:
            told.append(str(answer))
        return finished(trajectory)

    running = rollout(loop)
    assert (await outcome_of(running)).verdict is Verdict.VALID
    assert told == [repr(error)] * N and running.take_report().counts.calls_failed == N


@exits
@pytest.mark.parametrize("is_async", [True, False])
def test_given_a_tool_of_verl_s_that_exits_then_its_call_has_an_error(error, is_async):
    """On a real event loop: a plain function runs on a thread."""
    told: list[str] = []

    async def raises() -> None:
        raise error

    async def main() -> Verdict:
        function = raises if is_async else partial(plain, error)
        [tool] = recorded_tools([FunctionTool("tool", function, SCHEMA, is_async=is_async)], timeout_s=60)

        async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
            try:
                await tool.call({})
            except RecordedError as answer:
                told.append(str(answer))
            return finished(trajectory)

        return (await outcome_of(rollout(loop))).verdict

    assert asyncio.run(main()) is Verdict.VALID and told == [repr(error)] * N


@pytest.mark.slow
@exits
@kinds
@pytest.mark.parametrize("keeps_state", [True, False])
async def test_given_an_agent_loop_that_exits_then_its_group_fails_and_says_where(error, raises, keeps_state):
    contain_tasks()
    kept = KeptLoops(most=2)
    agent_loop = SimpleNamespace(keeps_state=keeps_state, run=lambda parameters, **_: raises(error))
    outcome = await outcome_of(rollout(lambda *_: kept.run(lambda: agent_loop, {}), kept=kept))
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "generation_error")
    assert (
        outcome.cause is not None
        and repr(error) in outcome.cause.summary
        and "test_containment.py" in outcome.cause.summary
    )


@exits
def test_given_an_agent_loop_whose_constructor_exits_then_it_is_refused_by_name(error):
    factory = AgentLoopFactory()
    factory._constructors["mine"] = partial(plain, error)
    with pytest.raises(ConfigError, match=f"mine: this agent loop cannot be made .*{re.escape(repr(error))}"):
        factory.make("mine")


@exits
@kinds
async def test_given_a_reward_function_in_verl_s_worker_that_exits_then_its_call_fails(error, raises, monkeypatch):
    monkeypatch.setattr(reward_isolation, "_load", lambda path, name: partial(raises, error))
    contain_tasks()
    isolated = OmegaConf.create({"function": {"path": "f", "name": "f", "timeout_s": 60.0, "constants": {}}})
    with pytest.raises(reward_isolation.RewardRaised, match=re.escape(repr(error))):
        await reward_isolation.compute_score_here(isolated=isolated)


@exits
async def test_given_recover_that_exits_then_its_trajectory_fails(error):
    @unknown_calls("retry", partial(awaited, error))
    async def hangs() -> None:
        await asyncio.sleep(1e6)

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await recorded(hangs)
        return finished(trajectory)

    held = group()
    assert await stopped_at(rollout(loop, carries=False), held, 5.0) is None
    for trajectory in held.trajectories:
        trajectory.is_restored = True
    assert (await outcome_of(rollout(loop), held)).verdict is Verdict.FAILED


@exits
def test_given_a_task_of_the_user_s_that_exits_when_an_actor_contains_its_tasks_then_its_event_loop_goes_on(error):
    async def main() -> str:
        contain_tasks()
        task = asyncio.create_task(awaited(error))
        with pytest.raises(CodeExited, match=re.escape(repr(error))):
            await task
        return "goes on"

    assert simulate(main()) == "goes on"


async def test_given_a_cancellation_or_a_signal_when_code_is_contained_then_it_goes_through():
    task = asyncio.create_task(value_of(partial(asyncio.sleep, 100)))
    await settle()
    task.cancel("ours")
    with pytest.raises(asyncio.CancelledError, match="ours"):
        await task
    for error in (Interrupted(), KeyError("a"), StopIteration(), RayExit()):
        with pytest.raises(type(error)) as raised, contained():
            raise error
        assert raised.value is error


class RayExit(SystemExit):
    """How Ray ends the process that it has asked to end."""

    ray_terminate_msg = "The process receives a SIGTERM."


def test_given_a_contained_coroutine_that_is_closed_or_never_begun_then_nothing_is_said():
    closed: list[type[BaseException]] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            closed.append(type(error))
            raise

    async def main() -> None:
        begun = value_of(waits)
        begun.send(None)
        begun.close()
        never = asyncio.get_running_loop().create_task(Contained(waits()))  # type: ignore[arg-type]
        never.cancel()
        with pytest.raises(asyncio.CancelledError):
            await never

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        simulate(main())
        gc.collect()
    assert closed == [GeneratorExit] and not [one for one in warned if "never awaited" in str(one.message)]


@pytest.mark.parametrize(("side", "kept"), [("left", "...z"), ("right", "aa..."), ("middle", "a...")])
async def test_given_a_call_with_an_error_of_megabytes_then_the_loop_and_the_log_get_as_much_as_of_an_answer(
    side, kept, caplog
):
    async def raises() -> None:
        raise ValueError("a" * 2_000_000 + "z" * 2_000_000)

    runner = call_runner(cut=partial(shortened, most=100, side=side))
    told: list[str] = []

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        recorder().runner = runner
        with pytest.raises(RecordedError) as raised:
            await recorded(raises)
        told.append(str(raised.value))
        return finished(trajectory)

    with caplog.at_level(logging.WARNING):
        await outcome_of(rollout(loop))
    assert {len(text) for text in told} == {100 + len("...(truncated)...")} and kept in told[0]
    assert 0 < len(caplog.text) < 10_000
