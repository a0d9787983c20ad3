"""Agents of the measurement; each process of agents has one client for all of them, as agents with an SDK should."""

from functools import cache
from typing import Any

import aiohttp
from openai import AsyncOpenAI

CHECK = {"role": "user", "content": "Check it."}


@cache
def _bare() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


@cache
def _sdk() -> AsyncOpenAI:
    return AsyncOpenAI(base_url="http://set.later/v1", api_key="set later", max_retries=0)


async def bare(base_url: str, key: str, sample: dict[str, Any]) -> float:
    """Two turns, or as many as the sample says, by HTTP alone."""
    messages = list(sample["raw_prompt"])
    for _ in range(sample["turns"]):
        body, headers = {"model": "policy", "messages": messages}, {"Authorization": f"Bearer {key}"}
        async with _bare().post(f"{base_url}/v1/chat/completions", json=body, headers=headers) as response:
            reply = await response.json()
        messages += [reply["choices"][0]["message"], CHECK]
    return 1.0


async def by_sdk(base_url: str, key: str, sample: dict[str, Any]) -> float:
    """The same by OpenAI's SDK."""
    messages: list[Any] = list(sample["raw_prompt"])
    client = _sdk().with_options(base_url=f"{base_url}/v1", api_key=key)
    for _ in range(sample["turns"]):
        reply = await client.chat.completions.create(model="policy", messages=messages)
        messages += [reply.choices[0].message, CHECK]
    return 1.0


async def by_own_sdk(base_url: str, key: str, sample: dict[str, Any]) -> float:
    """The same with a client for each trajectory."""
    messages: list[Any] = list(sample["raw_prompt"])
    async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key=key) as client:
        for _ in range(sample["turns"]):
            reply = await client.chat.completions.create(model="policy", messages=messages)
            messages += [reply.choices[0].message, CHECK]
    return 1.0
