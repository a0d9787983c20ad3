"""An agent loop of two turns: the model answers, is asked to check its answer, and answers again."""

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from .dialogue import Dialogue


class CheckedAnswer(AgentLoopBase):
    async def run(self, sampling_params: dict[str, Any], **sample: Any) -> AgentLoopOutput:
        dialogue = Dialogue(self, sample["raw_prompt"], sampling_params)
        await dialogue.ask()
        await dialogue.tell("Check it. Write the answer again.")
        if not dialogue.is_full:
            await dialogue.ask()
        return dialogue.output()
