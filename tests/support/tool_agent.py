"""A multi-turn task for a model that cannot call tools: every response of verl's tool agent loop counts as a call."""

from typing import Any

from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser


@ToolParser.register("every_response_calls")
class EveryResponseCalls(ToolParser):
    async def extract_tool_calls(self, responses_ids: list[int], tools: Any = None) -> tuple[str, list[FunctionCall]]:
        text = self.tokenizer.decode(responses_ids, skip_special_tokens=True)
        return text, [FunctionCall(name="next_problem", arguments=f'{{"length": {len(text)}}}')]


class NextProblemLoop(ToolAgentLoop):
    """verl's loop; its module registers the parser wherever the loop is made."""
