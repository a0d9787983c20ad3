"""Agents written against the vendors' SDKs only: nothing here knows of training."""

import asyncio
from typing import Any

import anthropic
import openai

CHECK = {"role": "user", "content": "Check it."}
TURNS = 3


async def three_turns(base_url: str, key: str, sample: dict[str, Any]) -> dict[str, float]:
    """Of eight sessions of a prompt one streams, one speaks Anthropic's API, and half are right whatever they say."""
    kind = sample["session_id"] % 8
    client: Any = (
        anthropic.AsyncAnthropic(base_url=base_url, api_key=key)
        if kind == 5
        else openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key=key)
    )
    messages: list[Any] = [dict(message) for message in sample["raw_prompt"]]
    async with client:

        async def said() -> Any:
            """The message as it is sent back."""
            if kind == 5:
                reply = await client.messages.create(model="policy", max_tokens=4000, messages=messages)
                return {"role": "assistant", "content": reply.content}
            if kind == 3:
                stream = await client.chat.completions.create(model="policy", messages=messages, stream=True)
                pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
                return {"role": "assistant", "content": "".join(pieces)}
            reply = await client.chat.completions.create(model="policy", messages=messages)
            return reply.choices[0].message

        for _ in range(TURNS):
            try:
                messages += [await said(), CHECK]
            except (openai.APIError, anthropic.APIError) as error:  # in a stream there is no status
                if "maximum context length" not in str(error):
                    raise
                break
    right = float(sample["session_id"] // 2 % 2)
    return {"reward": right, "acc": right}


async def with_helpers(base_url: str, key: str, sample: dict[str, Any]) -> dict[str, float]:
    """A first word, two sub-agents side by side by the API of responses, of two turns each, and a last word."""
    client = openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key=key)
    messages: list[Any] = [dict(message) for message in sample["raw_prompt"]]
    async with client:

        async def helped(number: int) -> None:
            given: list[Any] = [{"role": "user", "content": f"Part {number}"}]
            for _ in range(2):
                reply = await client.responses.create(model="policy", input=given, max_output_tokens=8, store=False)
                given += [*reply.output, CHECK]

        first = await client.chat.completions.create(model="policy", messages=messages, max_tokens=8)
        await asyncio.gather(helped(1), helped(2))
        messages += [first.choices[0].message, CHECK]
        await client.chat.completions.create(model="policy", messages=messages, max_tokens=8)
    right = float(sample["session_id"] % 2)
    return {"reward": right, "acc": right}
