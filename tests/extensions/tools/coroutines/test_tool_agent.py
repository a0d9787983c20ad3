"""Agent loops of several turns over our client: an interruption at any time, in any turn, is invisible to the loop."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from omegaconf import OmegaConf
from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.function_tool import FunctionTool
from verl.tools.schemas import OpenAIFunctionToolSchema

from examples.agent_loop.checked_answer import CheckedAnswer
from examples.agent_loop.dialogue import Dialogue
from examples.agent_loop.guessing import Guessing
from recipe.async_dapo.calls import call_id, recorded
from recipe.async_dapo.core.trajectory import Trajectory
from recipe.async_dapo.extensions.agents.call_runner import CallRunner
from recipe.async_dapo.extensions.tools.tools import recorded_tools
from recipe.async_dapo.recording import SampledTokens, TrajectoryInterrupted, current_recorder
from recipe.async_dapo.rollout.packed_output import PackedOutput
from recipe.async_dapo_lab.quickstart.tiny_model import build_tokenizer

from ....support import scripted_server
from ....support.client_world import World
from ....support.fakes import ScriptedServer
from ....support.rollout_world import call_runner
from ....support.scripted_server import ScriptedRequest
from ....support.simulation import VirtualTimeLoop, simulate

TURNS = 3
TOKENIZER = build_tokenizer()
DIGITS = TOKENIZER.convert_tokens_to_ids(list("0123456789"))
ROLLOUT = {
    "prompt_length": 64,
    "response_length": 200,
    "full_determinism": False,
    "multi_turn": {
        "max_user_turns": None,
        "max_assistant_turns": TURNS,
        "max_parallel_calls": 1,
        "max_tool_response_length": 50,
        "tool_response_truncate_side": "middle",
        "format": "every_response_calls",
    },
}
SCHEMA = {
    "type": "function",
    "function": {
        "name": "check",
        "description": "Check digits.",
        "parameters": {"type": "object", "properties": {"digits": {"type": "string"}}, "required": ["digits"]},
    },
}


@ToolParser.register("every_response_calls")
class EveryResponseCalls(ToolParser):
    async def extract_tool_calls(self, responses_ids: list[int], tools: Any = None) -> tuple[str, list[FunctionCall]]:
        text = self.tokenizer.decode(responses_ids)
        return text, [FunctionCall(name="check", arguments=f'{{"digits": "{text}"}}')]


class InlineExecutorLoop(VirtualTimeLoop):
    """verl tokenizes in threads; here that takes no time."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = self.create_future()
        future.set_result(func(*args))
        return future


class TurnServer(ScriptedServer):
    """A turn ends where the whole context is a multiple of 8 tokens; every token is a digit that tells its place."""

    def _admit(self, prompt_ids: list[int], sampling_params: dict[str, Any]) -> ScriptedRequest:
        return ScriptedRequest(prompt_ids, sampling_params["max_tokens"], 8 - len(prompt_ids) % 8)


@pytest.fixture(autouse=True)
def _digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted_server, "token_at", lambda prompt_ids, position: DIGITS[position % 10])


@dataclass
class Till:
    """A tool that takes money: one that is called twice charges twice."""

    takes_s: float
    charged: Counter[str] = field(default_factory=Counter)

    async def check(self, digits: str) -> str:
        self.charged[call_id()] += 1
        await asyncio.sleep(self.takes_s)
        return f"saw {digits}"


class AskedTill(AgentLoopBase):
    """A loop of its own: the till is asked by `recorded`."""

    till: ClassVar[Till]

    async def run(self, sampling_params: dict[str, Any], **sample: Any) -> AgentLoopOutput:
        dialogue = Dialogue(self, sample["raw_prompt"], sampling_params)
        while True:
            answer = await dialogue.ask()
            if dialogue.turns == TURNS:
                return dialogue.output()
            await dialogue.tell(await recorded(self.till.check, answer))


def agent_loop(loop_class: type[AgentLoopBase], client: Any, till: Till) -> AgentLoopBase:
    AskedTill.till = till
    tool = FunctionTool(name="check", fn=till.check, tool_schema=OpenAIFunctionToolSchema(**SCHEMA), is_async=True)
    return loop_class(
        trainer_config=DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT}})),
        server_manager=client,
        tokenizer=TOKENIZER,
        processor=None,
        dataset_cls=SimpleNamespace,
        data_config=DictConfigWrap(OmegaConf.create({})),
        hf_model_type="tiny",
        tools=ToolListWrap(recorded_tools([tool], timeout_s=60.0)),
    )


async def run(it: World, loop_class: type[AgentLoopBase], till: Till, runner: CallRunner) -> AgentLoopOutput:
    """Run the trajectory's agent loop from its start, as every round does."""
    it.recorder = runner.recorder(it.trajectory, prompt_uid="group", attempt="")
    it.recorder.runner = runner
    current_recorder.set(it.recorder)
    return await agent_loop(loop_class, it.client, till).run(
        {"logprobs": True}, raw_prompt=[{"role": "user", "content": "47+4*03"}], uid="group", session_id=0
    )


def a_world() -> World:
    servers = {"a": TurnServer(token_s=1.0), "b": TurnServer(token_s=1.0)}
    return World(servers, response_length=200, trajectory=Trajectory(session_id=0))


async def interrupted_every(
    it: World, loop_class: type[AgentLoopBase], till: Till, period_s: float
) -> tuple[AgentLoopOutput, int]:
    """Run to the end through rounds that are stopped after `period_s`, on two workers in turn. Returns the output and
    the rounds it took."""
    rounds, workers = 0, [call_runner(), call_runner()]
    while True:
        rounds += 1
        assert rounds < 200, "no progress"
        task = asyncio.create_task(run(it, loop_class, till, workers[rounds % 2]))
        done, _ = await asyncio.wait({task}, timeout=period_s)
        if done:
            return task.result(), rounds
        if not it.recorder.stop():
            task.cancel()
        await it.balancer_handle.stop.remote()
        await asyncio.wait({task})
        assert task.cancelled() or isinstance(task.exception(), TrajectoryInterrupted)
        for handle in it.handles.values():
            await handle.set_global_steps.remote(rounds)
        await it.balancer_handle.open.remote()


@pytest.mark.slow
@pytest.mark.parametrize("tool_s", [1.5, 30.0])  # within a round, and many rounds long
@pytest.mark.parametrize(
    ("loop_class", "turns", "calls", "period_s"),
    [
        *((ToolAgentLoop, TURNS, TURNS - 1, period_s) for period_s in (2.9, 4.4, 5.3, 6.6, 8.2)),
        *((AskedTill, TURNS, TURNS - 1, period_s) for period_s in (2.9, 6.6)),
        *((CheckedAnswer, 2, 0, period_s) for period_s in (4.4, 8.2)),
        *((Guessing, 4, 0, period_s) for period_s in (4.4, 6.6)),
    ],
)
def test_given_stops_at_any_time_then_the_loop_ends_as_if_nothing_had_happened(
    loop_class: type[AgentLoopBase], turns: int, calls: int, period_s: float, tool_s: float
) -> None:
    async def undisturbed() -> AgentLoopOutput:
        return await run(a_world(), loop_class, Till(tool_s), call_runner())

    async def disturbed() -> tuple[AgentLoopOutput, int, World]:
        it = a_world()
        output, rounds = await interrupted_every(it, loop_class, till, period_s)
        return output, rounds, it

    till = Till(tool_s)
    random.seed(0)
    expected = simulate(undisturbed(), loop_class=InlineExecutorLoop)
    random.seed(0)
    output, rounds, it = simulate(disturbed(), loop_class=InlineExecutorLoop)
    assert rounds > (3 if calls and tool_s > 4 * period_s else 1)
    assert list(till.charged.values()) == [1] * calls, "a tool is called once, however often it is interrupted"
    for name in ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "num_turns"):
        assert getattr(output, name) == getattr(expected, name), name
    assert 0 in output.response_mask and sum(output.response_mask) == it.trajectory.generated_tok
    assert len(it.trajectory.turns) == turns and it.recorder.counts.diverged_tok == 0
    assert len({version for version, _ in it.trajectory.stamps}) > 1
    packed = PackedOutput.pack(output, SampledTokens(it.trajectory.turns))
    assert [v for v, n in packed.stamps for _ in range(n)] == [v for v, n in it.trajectory.stamps for _ in range(n)]
