"""What the tools example needs for the quick start's tiny model, which can write nothing but workings: one is a call.

A model of your own writes calls in a format that verl knows, and needs neither this parser nor this loop.
"""

import json
import re
from typing import Any

from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema

STEP = re.compile(r"\d\d:(\d)[_'](\d)")  # additions left, units, carry or none, tens: 02:1'5 is 51
ADDEND = 4


@ToolParser.register("working")
class WorkingParser(ToolParser):
    """Takes a working for a call of a tool, which its last digit chooses where there are several: with its last number,
    and where two are asked for, the addend.
    """

    async def extract_tool_calls(
        self, responses_ids: list[int], tools: list[OpenAIFunctionToolSchema] | None = None
    ) -> tuple[str, list[FunctionCall]]:
        text = self.tokenizer.decode(responses_ids, skip_special_tokens=True)
        steps = STEP.findall(text)
        if not steps or not tools:
            return text, []
        units, tens = steps[-1]
        function = tools[int(units) % len(tools)].function
        arguments = dict(zip(function.parameters.required, (int(tens + units), ADDEND), strict=False))
        return text, [FunctionCall(name=function.name, arguments=json.dumps(arguments))]


class WorkingToolAgent(ToolAgentLoop):
    """verl's tool agent; the module that it is loaded from has registered the parser."""


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None
) -> dict[str, float]:
    """Whether the model's first turn is the truth; the tool's answer and a second turn follow it."""
    right = float(solution_str.startswith(ground_truth))
    return {"score": right, "acc": right}
