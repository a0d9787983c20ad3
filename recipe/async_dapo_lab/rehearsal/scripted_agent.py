"""An agent that says nothing of its own: so many turns, and so much time between them.

In a rehearsal it takes the place of the user's, to which answers of emulated engines say nothing. It runs in the
process of agents, as that would, and imports no more than it needs there.
"""

import asyncio
from typing import Any

import aiohttp

SCRIPT = "script"  # in the sample
RIGHT = "1"  # at the end of an answer
MORE = {"role": "user", "content": "Go on."}


async def run(base_url: str, key: str, sample: dict[str, Any]) -> dict[str, float]:
    """Its result: whether its first answer is right, as all trajectories of a prompt are asked for that one.

    Raises:
        RuntimeError: with the gateway's words, for a request that it refuses; a context that answers have filled is an
            end, and no error.
    """
    script, messages = sample[SCRIPT], list(sample["raw_prompt"])
    answers: list[str] = []
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}, timeout=timeout) as http:
        for turn in range(script["turns"]):
            if turn:
                await asyncio.sleep(script["own_s"])
            body = {"model": "policy", "messages": messages}
            async with http.post(f"{base_url}/v1/chat/completions", json=body) as reply:
                told = await reply.json()
            if "error" in told:
                if answers and told["error"]["code"] == "context_length_exceeded":
                    break
                raise RuntimeError(f"the gateway has refused a request: {told['error']['message']}")
            said = told["choices"][0]["message"]
            answers.append(said["content"])
            messages += [said, MORE]
    right = float(answers[0].rstrip().endswith(RIGHT))
    return {"reward": right, "acc": right, script["metric"]: right}
