"""Two tools that ask a service over HTTP. The second one's service is broken: see what a run says of it."""

import os

import aiohttp
from verl.tools.function_tool import function_tool

SERVICE = os.environ.get("TOOLS_SERVICE", "http://127.0.0.1:8766")
LIMIT_S = 60.0  # of a call: a service that does not answer holds its response up


@function_tool
async def add(first: int, second: int) -> str:
    """Add two whole numbers.

    Args:
        first: The first number.
        second: The second number.
    """
    return await _asked("add", first=first, second=second)


@function_tool
async def look_up(page: int) -> str:
    """Look up a page.

    Args:
        page: Its number.
    """
    return await _asked("look_up", page=page)


async def _asked(name: str, **arguments: int) -> str:
    limit = aiohttp.ClientTimeout(total=LIMIT_S)
    async with (
        aiohttp.ClientSession(timeout=limit) as session,
        session.get(f"{SERVICE}/{name}", params=arguments) as reply,
    ):
        reply.raise_for_status()
        return await reply.text()
