"""vLLM with drafts by suffix decoding and without: what it samples, and with which log-probs.

At each temperature so many answers, and so many, whole multiples of 128, that do not end in one piece.
"""

import asyncio
import os
from collections import Counter
from typing import Any

import pytest
from verl.plugin.platform import get_platform

os.environ.update(get_platform().rollout_env_vars())  # as verl does before it starts an engine

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from recipe.async_dapo.config.values import MOST_DRAFT_TOK, Drafts
from recipe.async_dapo.engines.load_meter import LoadMeter
from recipe.async_dapo.engines.protocol import ABORTED
from recipe.async_dapo.engines.server import AsyncDAPOServer
from recipe.async_dapo.extensions.drafts.speculative import SPECULATIVE_CONFIGS

from ....support.rescaled_receiver import RescaledReceiver
from ....support.scripted_engine import start_server

PROMPT = [5 + k % 7 for k in range(24)]
SAMPLED_TOK = 24
LIKELY = 2  # tokens to sample from: so few that answers of a model that knows nothing repeat each other
LIMIT_TOK = 96
PART_TOK = 40  # under each of two policies
FACTOR = 0.8  # from one to the other
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 64,
    "seed": 0,
    "enable_prefix_caching": True,
    "logprobs_mode": "processed_logprobs",
    "distributed_executor_backend": "async_dapo_cpu.executor.LocalExecutor",
    "worker_extension_cls": f"{RescaledReceiver.__module__}.{RescaledReceiver.__qualname__}",
}


async def answers(
    server: AsyncDAPOServer, temperature: float, count: int, group: str, **params: Any
) -> list[tuple[list[int], list[float]]]:
    """Tokens and log-probs of so many answers, 64 at a time."""
    places, asked = asyncio.Semaphore(64), {"logprobs": True, "ignore_eos": True, "max_tokens": SAMPLED_TOK} | params

    async def answer(number: int) -> tuple[list[int], list[float]]:
        async with places:
            output = await server.generate(PROMPT, {"temperature": temperature} | asked, f"{group}-{number}")
        return output.token_ids, output.log_probs

    return await asyncio.gather(*(answer(number) for number in range(count)))


async def go_on(
    server: AsyncDAPOServer,
    group: str,
    tokens: list[list[int]],
    limit_tok: int,
    params: dict[str, Any],
    stops: bool = False,
) -> Counter[str]:
    """Continue some answers up to so many tokens, with an interruption on the way if it stops. Returns how often
    they came back, and why.
    """
    opened, back, returns = asyncio.Event(), asyncio.Event(), Counter[str]()
    asked = {"logprobs": True, "ignore_eos": True} | params

    def take(own: list[int], output: Any) -> str:
        own += output.token_ids
        returns[output.stop_reason] += 1
        if returns.total() == len(tokens):
            back.set()
        return output.stop_reason

    async def answer(number: int) -> None:
        own = tokens[number]
        while len(own) < limit_tok:
            name = f"{group}-{number}-{limit_tok}-{len(own)}"
            rest = asked | {"max_tokens": limit_tok - len(own)}
            reason = take(own, await server.generate(PROMPT + own, rest, name))
            if reason == ABORTED:
                await opened.wait()

    async with asyncio.TaskGroup() as tasks:
        for number in range(len(tokens)):
            tasks.create_task(answer(number))
        if stops:
            await server.generate(PROMPT, asked | {"max_tokens": 2}, f"{group}-meanwhile")
            await server.stop_generation()
            await back.wait()
            await server.allow_generation()
        opened.set()
    return returns


async def interrupted(
    server: AsyncDAPOServer, group: str, count: int, **params: Any
) -> tuple[list[list[int]], Counter[str]]:
    """Tokens of answers that are aborted and go on; and after a weight update go on again. And how often
    they came back before the update, and why.
    """
    all_tokens, returns = [], Counter[str]()
    for number in range(count // 64):
        tokens: list[list[int]] = [[] for _ in range(64)]
        name = f"{group}-{number}"
        returns += await go_on(server, name, tokens, PART_TOK, params, stops=True)
        await update(server, FACTOR)
        await go_on(server, name, tokens, 2 * PART_TOK, params)
        await update(server, 1 / FACTOR)
        all_tokens += tokens
    return all_tokens, returns


async def update(server: AsyncDAPOServer, factor: float) -> None:
    await server.engine.collective_rpc("rescale", args=(factor,))
    server.global_steps += 1


async def main(model: str, drafts: bool, samples: int, cut: int) -> dict[str, Any]:
    arguments = ENGINE | {"max_model_len": len(PROMPT) + LIMIT_TOK}
    if drafts:
        arguments |= {"speculative_config": SPECULATIVE_CONFIGS[Drafts.SUFFIX]}
        arguments["max_model_len"] += MOST_DRAFT_TOK
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **arguments))
    meter = LoadMeter.attach(engine)
    server = start_server(pytest.MonkeyPatch(), engine)
    seen: dict[str, Any] = {}
    greedy = await answers(server, 0.0, 64, "greedy", max_tokens=LIMIT_TOK)
    seen["greedy"] = [tokens for tokens, _ in greedy]
    for temperature in (1.0, 0.6):
        sampled = await answers(server, temperature, samples, f"at {temperature}", top_k=LIKELY)
        counts = [Counter(tokens[at] for tokens, _ in sampled) for at in (1, SAMPLED_TOK // 2, SAMPLED_TOK - 1)]
        log_probs: dict[str, list[float]] = {}
        for tokens, values in sampled:
            log_probs.setdefault(str(tokens[:2]), []).append(sum(values[:2]))
        seen[str(temperature)] = {
            "counts": [dict(count) for count in counts],
            "mean_log_prob": sum(sum(values) for _, values in sampled) / (samples * SAMPLED_TOK),
            "spread": max(max(values) - min(values) for values in log_probs.values()),
            "lengths": sorted({len(tokens) for tokens, _ in sampled} | {len(values) for _, values in sampled}),
        }
    load = meter.load()
    seen["drafted_tok"], seen["accepted_tok"] = load.drafted_tok, load.accepted_tok
    seen["generated_tok"] = load.generated_tok
    seen["interrupted greedy"], _ = await interrupted(server, "cut, greedy", 128, temperature=0.0)
    for temperature in (1.0, 0.6):
        parts, returns = await interrupted(server, f"cut, at {temperature}", cut, temperature=temperature, top_k=LIKELY)
        counts = [Counter(tokens[at] for tokens in parts) for at in (1, PART_TOK - 1, PART_TOK, 2 * PART_TOK - 1)]
        seen[str(temperature)]["interrupted"] = [dict(count) for count in counts]
        seen[str(temperature)]["returns"] = returns
        seen[str(temperature)]["accepted_tok"] = meter.load().accepted_tok  # since the last stop
    engine.shutdown()
    return seen
