"""An agent loop that decides by the prompt how long its answers are: which of them a round cannot end is known."""

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

SHORT_TOK, LONG_TOK = 40, 60


class AnswersOfTwoLengths(SingleTurnAgentLoop):
    """A single turn that ends at its length and nowhere else: of the prompts whose number is odd, the first answer is
    long, and all others are short.
    """

    async def run(self, sampling_params: dict[str, Any], **sample: Any) -> AgentLoopOutput:
        content = sample["raw_prompt"][-1]["content"]
        text = content if isinstance(content, str) else content[-1]["text"]  # after its pictures
        is_long = sample["session_id"] == 0 and int(text[1]) % 2 == 1  # text begins with a number of two digits
        length_tok = LONG_TOK if is_long else SHORT_TOK
        return await super().run(sampling_params | {"max_tokens": length_tok, "ignore_eos": True}, **sample)
