"""verl's tools, recorded: each executes once, and every instance that was created is released."""

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from verl.experimental.agent_loop import AgentLoopOutput
from verl.tools.base_tool import BaseTool
from verl.tools.function_tool import FunctionTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from recipe.async_dapo.calls import RecordedError, call_id
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.outcome import Verdict
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.extensions.tools.tools import recorded_tools

from ....coroutines.test_containment import SCHEMA as PLAIN_SCHEMA
from ....coroutines.test_containment import exits, hook_is_put_back, plain  # noqa: F401
from ....support.rollout_world import Loop, N, finished, group, outcome_of, rollout, stopped_at
from ....support.simulation import now_s

SCHEMA = {
    "type": "function",
    "function": {"name": "till", "description": "Takes money.", "parameters": {"type": "object", "properties": {}}},
}


class Till(BaseTool):
    """A tool with instances, as verl has them; it knows nothing of this recipe."""

    def __init__(self, takes_s: float) -> None:
        super().__init__({}, OpenAIFunctionToolSchema(**SCHEMA))
        self.takes_s = takes_s
        self.open: list[str] = []
        self.created: list[str] = []
        self.charged: Counter[str] = Counter()

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        await asyncio.sleep(1.0)
        made_id, response = await super().create(instance_id)
        self.open.append(made_id)
        self.created.append(made_id)
        return made_id, response

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict]:
        assert instance_id in self.open
        self.charged[call_id()] += 1
        kwargs["agent_data"].extra_fields.setdefault("numbers", []).append(parameters["number"])
        await asyncio.sleep(self.takes_s)
        assert instance_id in self.open, "released under its call"
        return ToolResponse(text="thanks"), 0.5, {"paid": 1}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        await asyncio.sleep(5.0)
        self.open.remove(instance_id)


def lifecycle(tool: Any, times: int, told: list[Any]) -> Loop:
    """As verl's tool agent loop drives a tool; with `times` > 1 as one that keeps its instance."""

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        instance_id, agent_data = None, SimpleNamespace(extra_fields={"turns": 1})
        try:
            instance_id, _ = await tool.create(create_kwargs={"currency": "EUR"})
            for number in range(times):
                told.append(await tool.execute(instance_id, {"number": number}, agent_data=agent_data))
                assert agent_data.extra_fields == {"turns": 1, "numbers": list(range(number + 1))}
        finally:
            if instance_id:
                await tool.release(instance_id)
        return finished(trajectory)

    return loop


# In `create`, between the two, in `execute`, at its end, in `release`.
@pytest.mark.parametrize("stop_s", [0.5, 1.0, 5.0, 11.0, 13.0])
@pytest.mark.parametrize("is_other_worker", [False, True])
async def test_given_a_tool_with_instances_when_it_is_interrupted_then_it_executes_once_and_every_instance_is_released(
    capsys, stop_s: float, is_other_worker: bool
) -> None:
    tills, told = [Till(10.0), Till(10.0)], []
    wrapped = recorded_tools(tills, timeout_s=60.0)
    held = group()
    await stopped_at(rollout(lifecycle(wrapped[0], 1, told)), held, stop_s)
    outcome = await outcome_of(rollout(lifecycle(wrapped[int(is_other_worker)], 1, told)), held)
    assert outcome.verdict is Verdict.VALID
    await asyncio.sleep(60)
    assert set((tills[0].charged + tills[1].charged).values()) == {1}
    assert sum(till.charged.total() for till in tills) == 4
    assert not tills[0].open and not tills[1].open
    for response, reward, metrics in told:
        assert (response.text, reward, metrics) == ("thanks", 0.5, {"paid": 1})


@pytest.mark.parametrize("ends_s", [0.5, 5.0, 13.0])  # in `create`, in `execute`, in `release`
@pytest.mark.parametrize("is_stop", [False, True])
async def test_given_trajectories_that_are_given_up_then_their_calls_end_and_every_instance_is_released(
    ends_s: float, is_stop: bool
) -> None:
    """As a sibling has failed, or as the stop keeps nothing."""
    till = Till(1e6 if ends_s == 5.0 else 10.0)
    [tool] = recorded_tools([till], timeout_s=1e9)

    async def loop(held: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        if trajectory.session_id == 0 and not is_stop:
            await asyncio.sleep(ends_s)
            raise RuntimeError("no answer")
        return await lifecycle(tool, 1, [])(held, trajectory)

    ended = await stopped_at(rollout(loop, carries=False), group(), ends_s if is_stop else ends_s + 1.0)
    assert ended is None if is_stop else ended.verdict is Verdict.FAILED
    await asyncio.sleep(20)
    assert len(till.created) == (4 if is_stop else 3) and not till.open
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("call ")]


async def test_given_an_instance_that_has_run_when_its_worker_is_not_there_then_its_trajectory_fails_and_says_why(
    capsys,
) -> None:
    held, tools = group(), recorded_tools([Till(10.0), Till(10.0)], timeout_s=60.0)
    await stopped_at(rollout(lifecycle(tools[0], 2, [])), held, 15.0)
    outcome = await outcome_of(rollout(lifecycle(tools[1], 3, [])), held)
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "state_lost")
    await asyncio.sleep(60)


@pytest.mark.parametrize("swallows", [False, True])
async def test_given_a_tool_that_answers_with_a_picture_when_it_is_called_then_training_ends_and_says_why(
    swallows: bool,
) -> None:
    async def show() -> ToolResponse:
        return ToolResponse(text="look", image=["/data/1.png"])

    function = FunctionTool("show", show, OpenAIFunctionToolSchema(**SCHEMA), is_async=True)
    [tool] = recorded_tools([function], timeout_s=60.0)

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        with suppress(*([Exception] if swallows else [])):  # verl's loop makes a text of any error
            await tool.call({})
        return finished(trajectory)

    with pytest.raises(BaseExceptionGroup) as caught:
        await rollout(loop).run(group())
    assert caught.group_contains(ConfigError, match=r"^agent loop=tool: has answered with a picture or video: training")


class Notes(BaseTool):
    """A tool that keeps its notes in verl's place for them, shared by calls at once."""

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict]:
        fields = kwargs["agent_data"].extra_fields
        log, takes_s = fields.setdefault("log", []), parameters["takes_s"]
        log.append(f"{takes_s} begins")
        fields.pop("to_do", None)
        await asyncio.sleep(takes_s)
        log.append(f"{takes_s} ends")
        fields["last"] = takes_s
        return ToolResponse(text="noted"), 0.0, {}


async def noted(tool: Any, takes_s: int, agent_data: Any) -> None:
    instance_id, _ = await tool.create()
    await tool.execute(instance_id, {"takes_s": takes_s}, agent_data=agent_data)
    await tool.release(instance_id)


@pytest.mark.parametrize("stop_s", [7.0, 20.0])  # after one of the calls, after both
async def test_given_calls_at_once_that_share_fields_then_nothing_is_lost_and_a_resumed_loop_finds_them_the_same(
    stop_s: float,
) -> None:
    [tool] = recorded_tools([Notes({}, OpenAIFunctionToolSchema(**SCHEMA))], timeout_s=60.0)
    found: list[dict[str, Any]] = []

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        agent_data = SimpleNamespace(extra_fields={"to_do": "notes"})
        await asyncio.gather(noted(tool, 10, agent_data), noted(tool, 5, agent_data))
        found.append(agent_data.extra_fields)
        await asyncio.sleep(60)
        return finished(trajectory)

    held = group()
    assert await stopped_at(rollout(loop), held, stop_s) is None
    assert (await outcome_of(rollout(loop), held)).verdict is Verdict.VALID
    log = ["10 begins", "5 begins", "5 ends", "10 ends"]
    assert found == [{"log": log, "last": 10}] * (8 if stop_s == 20.0 else 4)


async def test_given_a_live_object_that_a_tool_keeps_then_it_is_left_out_of_the_output_and_the_run_goes_on(caplog):
    class Keeping(Notes):
        async def execute(
            self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
        ) -> tuple[ToolResponse, float, dict]:
            kwargs["agent_data"].extra_fields |= {"session": object(), "pages": 3}
            return ToolResponse(text="open"), 0.0, {}

    schema = OpenAIFunctionToolSchema(**SCHEMA)
    other_schema = OpenAIFunctionToolSchema(**{**SCHEMA, "function": {**SCHEMA["function"], "name": "notes"}})
    tool, other = recorded_tools([Keeping({}, schema), Notes({}, other_schema)], timeout_s=60.0)

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        agent_data = SimpleNamespace(extra_fields={})
        await noted(tool, 0, agent_data)
        await noted(other, 0, agent_data)
        assert agent_data.extra_fields.keys() == {"session", "pages", "log", "last"}
        [output] = finished(trajectory)
        output.extra_fields = agent_data.extra_fields
        return [output]

    held = group()
    with caplog.at_level(logging.WARNING):
        assert (await outcome_of(rollout(loop), held)).verdict is Verdict.VALID
    assert caplog.text.count("tool till keeps session in agent_data.extra_fields, which no record can hold") == 1
    assert "tool notes keeps" not in caplog.text
    for trajectory in held.trajectories:
        assert trajectory.outputs[0].rest.extra_fields.keys() == {"pages", "log", "last", "reward_extra_info"}


class Hanging(Till):
    async def release(self, instance_id: str, **kwargs: Any) -> None:
        await asyncio.sleep(1e6)


async def test_given_a_tool_that_never_releases_then_its_trajectory_ends_at_the_limit_and_the_log_names_it(caplog):
    [tool] = recorded_tools([Hanging(10.0)], timeout_s=60.0)
    with caplog.at_level(logging.WARNING):
        outcome = await outcome_of(rollout(lifecycle(tool, 1, [])))
    assert outcome.verdict is Verdict.VALID
    assert now_s() == pytest.approx(1 + 10 + 60)
    assert "tool till: release took longer than async_dapo.calls.timeout_s=60.0" in caplog.text


def test_given_a_plain_function_as_a_tool_then_its_answer_is_verl_s_and_it_may_name_its_call() -> None:
    names: list[str] = []

    def add(first: int) -> str:
        names.append(call_id())
        return str(first)

    async def main() -> Any:
        function = FunctionTool("add", add, OpenAIFunctionToolSchema(**SCHEMA))
        return await recorded_tools([function], timeout_s=60.0)[0].call({"first": 3})

    assert asyncio.run(main()) == "3" and names == [""], "outside of a trajectory it is simply called"


@exits
@pytest.mark.parametrize("is_async", [True, False])
def test_given_a_tool_of_verl_s_that_exits_then_its_call_has_an_error(error, is_async):
    """On a real event loop: a plain function runs on a thread."""
    told: list[str] = []

    async def raises() -> None:
        raise error

    async def main() -> Verdict:
        function = raises if is_async else partial(plain, error)
        [tool] = recorded_tools([FunctionTool("tool", function, PLAIN_SCHEMA, is_async=is_async)], timeout_s=60)

        async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
            try:
                await tool.call({})
            except RecordedError as answer:
                told.append(str(answer))
            return finished(trajectory)

        return (await outcome_of(rollout(loop))).verdict

    assert asyncio.run(main()) is Verdict.VALID and told == [repr(error)] * N
