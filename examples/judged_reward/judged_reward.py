"""An asynchronous reward function: a service judges the answer, many answers at a time."""

from typing import Any

import aiohttp


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    *,
    judge_url: str,
) -> dict[str, float]:
    question = {"answer": solution_str, "truth": ground_truth}
    async with aiohttp.ClientSession() as session, session.post(judge_url, json=question) as reply:
        reply.raise_for_status()
        right = float((await reply.json())["right"])
    return {"score": right, "acc": right}
