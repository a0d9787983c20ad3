"""The tool of `tool_agent`, in a file of its own: verl loads tools by path. Some of its calls outlive their round,
and some kill its server."""

import asyncio

from verl.tools.function_tool import function_tool

from recipe.async_dapo.calls import unknown_calls
from tests.support.till import SLOW_S, Server, recover

_server = Server()


@function_tool
@unknown_calls("fail_trajectory", recover)
async def next_problem(length: int) -> str:
    """Give another problem.

    Args:
        length: Characters of the last answer.
    """
    answer = await _server.pay(length)
    if length % 5 == 0:
        await asyncio.sleep(SLOW_S)
    return answer
