"""An agent that knows an address and a key, and nothing of training: it asks a model by OpenAI's SDK, and has it check
its answer. Its result is its reward.
"""

from typing import Any

from openai import AsyncOpenAI


async def solve(base_url: str, key: str, sample: dict[str, Any]) -> dict[str, float]:
    messages: list[Any] = list(sample["raw_prompt"])
    async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key=key) as client:
        first = await client.chat.completions.create(model="policy", messages=messages)
        messages += [first.choices[0].message, {"role": "user", "content": "Check it."}]
        await client.chat.completions.create(model="policy", messages=messages)
    right = float(first.choices[0].message.content == sample["reward_model"]["ground_truth"])
    return {"reward": right}
