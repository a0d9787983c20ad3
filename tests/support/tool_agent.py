"""A multi-turn task for a model that cannot call tools: every response counts as a call."""

import asyncio
from collections.abc import Sequence
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser

from examples.agent_loop import sandbox
from examples.agent_loop.dialogue import Dialogue
from examples.agent_loop.sandbox import Sandbox
from recipe.async_dapo.calls import recorded
from recipe.async_dapo.recording import current_recorder

from . import till

TURNS = 3
sandbox.LIMIT_S = 300.0  # a piece of code that a busy machine starts late is none that never ends


@ToolParser.register("every_response_calls")
class EveryResponseCalls(ToolParser):
    async def extract_tool_calls(self, responses_ids: list[int], tools: Any = None) -> tuple[str, list[FunctionCall]]:
        text = self.tokenizer.decode(responses_ids, skip_special_tokens=True)
        return text, [FunctionCall(name="next_problem", arguments=f'{{"length": {len(text)}}}')]


class NextProblemLoop(ToolAgentLoop):
    """Of two trajectories one runs verl's loop, and one a loop of its own at temperature 0. Both note each interruption
    (alive over it or not) and each end. They have no state to keep, but the run decides how many stay alive.

    Args:
        stop: texts that end an answer of its own loop.
    """

    keeps_state = True

    def __init__(self, *args: Any, stop: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._greedy = {"temperature": 0.0} | ({"stop": [*stop]} if stop else {})

    async def run(self, sampling_params: dict[str, Any], **sample: Any) -> AgentLoopOutput:
        is_own = sample["session_id"] % 2 == 0
        of = {"uid": sample["uid"], "session": sample["session_id"], "is_own": is_own}
        recorder = current_recorder.get()
        kept: Any = getattr(recorder, "kept_loop", None)
        if kept is not None:
            suspend = kept.suspend

            def noted_suspend() -> None:
                till.note(**of, is_end=False)
                suspend()

            kept.suspend = noted_suspend  # type: ignore[method-assign]
        try:
            output = await (self._run_greedy if is_own else super().run)(sampling_params, **sample)
        except asyncio.CancelledError:
            till.note(**of, is_end=False)
            raise
        till.note(**of, is_end=True, prompt=output.prompt_ids, response=output.response_ids)
        return output

    async def _run_greedy(self, sampling_params: dict[str, Any], **sample: Any) -> AgentLoopOutput:
        is_training = sampling_params["temperature"] > 0
        dialogue = Dialogue(self, sample["raw_prompt"], sampling_params | self._greedy)
        total = Total() if is_training and sample["session_id"] == 0 else None
        try:
            if total is not None:
                await total.add(1)  # whenever it is interrupted from now on, a process has run something,
            while True:
                answer = await dialogue.ask()
                if total is not None:
                    await total.add(len(answer))  # and has more to run
                if dialogue.turns == TURNS or dialogue.is_full:
                    return dialogue.output()
                problem = await recorded(till.pay, len(answer), wait_s=till.STEP_S if is_training else 0.0)
                await dialogue.tell(problem)
        finally:
            if total is not None:
                await total.close()


class Total:
    """The state of a loop, in a process of its own: what it has lost of it is an error, which the run counts."""

    def __init__(self) -> None:
        self._sandbox = Sandbox()
        self._expected = 0

    async def add(self, length: int) -> None:
        self._expected += length
        self._sandbox.code.append(f"total = globals().get('total', 0) + {length}; print(total)")
        printed = await recorded(self._sandbox.output)
        if self._sandbox.process is not None:
            till.note_process(self._sandbox.process.pid, pieces=len(self._sandbox.code))
        assert int(printed) == self._expected

    async def close(self) -> None:
        await self._sandbox.close()
