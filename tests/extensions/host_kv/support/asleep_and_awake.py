"""vLLM's cache is emptied, as sleep does, between a request and the one that continues it, on our server with KV of
interrupted requests in host memory.
"""

import asyncio
import time
from typing import Any

import pytest
import torch
from verl.workers.rollout.replica import TokenOutput

from recipe.async_dapo.engines.protocol import MORE
from recipe.async_dapo.engines.server import AsyncDAPOServer
from recipe.async_dapo.extensions.host_kv.connector import transfer_config

from ....support.scripted_engine import start_server
from ....support.waiting_at_a_pause import BLOCK_TOK, ENGINE, PROMPT, AsyncEngineArgs, AsyncLLM, vllms_own

PARAMS = {"logprobs": True, "ignore_eos": True, "temperature": 0}
LONG_TOK, SHORT_TOK = 900, 2 * BLOCK_TOK
INTERRUPTED_TOK = 5 * BLOCK_TOK  # what a request has at least when it is interrupted
STEP_S = 0.01  # at least: an answer does not end while this process gets no CPU for some seconds


class InspectedWorker:
    """Of an engine, whose weights may be those of the next policy version."""

    def slow_down(self: Any) -> None:
        self.model_runner.model.register_forward_pre_hook(lambda *_: time.sleep(STEP_S))

    def change_weights(self: Any) -> None:
        with torch.no_grad():
            for parameter in self.model_runner.model.parameters():
                parameter.mul_(1.05)

    def generated_tok(self: Any) -> dict[str, int]:
        """Of each request that the engine's last step knew."""
        return {name: len(request.output_token_ids) for name, request in self.model_runner.requests.items()}


async def answer(
    server: AsyncDAPOServer, context: list[int], name: str, most_tok: int = SHORT_TOK, **options: Any
) -> dict[str, Any]:
    """What a request has generated when it is over, or interrupted."""
    output: TokenOutput = await server.generate(context, PARAMS | {"max_tokens": most_tok}, name, **options)
    tokens, log_probs = list(output.token_ids), list(output.log_probs)
    while output.stop_reason == MORE:
        output = await server.reattach(name)
        tokens, log_probs = tokens + output.token_ids, log_probs + output.log_probs
    found_tok = output.extra_fields.get("num_cached_tokens")
    return {"tokens": tokens, "log_probs": log_probs, "found_tok": found_tok}


async def interrupted(
    engine: AsyncLLM, server: AsyncDAPOServer, contexts: list[list[int]], name: str, unwanted: int = 0, **options: Any
) -> list[Any]:
    """Requests that are stopped when each has a few blocks; the first ones, if unwanted, are aborted before."""
    names = [f"{name} {k}" for k in range(len(contexts))]
    tasks = [
        asyncio.create_task(answer(server, context, each, LONG_TOK, **options))
        for context, each in zip(contexts, names, strict=True)
    ]
    await in_the_engine(engine, name, len(contexts), least_tok=1)
    await server.abort_requests(names[:unwanted])
    await in_the_engine(engine, name, len(contexts) - unwanted, least_tok=INTERRUPTED_TOK)
    await server.stop_generation()
    return [await task for task in tasks]


async def in_the_engine(engine: AsyncLLM, name: str, requests: int, least_tok: int) -> None:
    """Wait until so many requests of a name are there, each with so many tokens."""
    while True:
        known, *_ = await engine.collective_rpc("generated_tok")
        generated_tok = [tok for request, tok in known.items() if request.startswith(name)]
        if len(generated_tok) == requests and min(generated_tok) >= least_tok:
            return


async def sleep_and_wake_up(engine: AsyncLLM, server: AsyncDAPOServer, version: int) -> bool:
    """What vLLM's sleep and verl's wake-up do to the scheduler and the cache. Returns whether that was emptied."""
    await engine.pause_generation(mode="abort", clear_cache=True)
    is_empty = await engine.reset_prefix_cache(reset_connector=True)
    await engine.resume_generation()
    await server.set_global_steps(version)
    await server.allow_generation()
    return is_empty


async def main(model: str, ranks: int, room_blocks: int) -> dict[str, Any]:
    block_bytes = 2 * 2 * 2 * 16 * 4 * BLOCK_TOK
    arguments = ENGINE | {
        "max_num_seqs": 4,
        "kv_transfer_config": transfer_config(room_blocks * block_bytes / 2**30, ranks),
        "worker_extension_cls": f"{InspectedWorker.__module__}.{InspectedWorker.__name__}",
    }
    if ranks > 1:
        arguments |= {"tensor_parallel_size": ranks, "distributed_executor_backend": "mp"}
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **arguments))
    await engine.collective_rpc("slow_down")
    server = start_server(pytest.MonkeyPatch(), engine, delivery_tok=8)
    prompts = [[token + k for token in PROMPT] for k in range(2)]
    begun = await interrupted(engine, server, prompts, "begun")
    contexts = [prompt + one["tokens"] for prompt, one in zip(prompts, begun, strict=True)]
    context_tok = [*map(len, contexts)]
    emptied = [await sleep_and_wake_up(engine, server, 1)]
    same_weights = [
        [await answer(server, context, f"same {k} {began}", began=began) for began in (1, 0)]
        for k, context in enumerate(contexts)
    ]
    await engine.collective_rpc("change_weights")
    emptied.append(await sleep_and_wake_up(engine, server, 2))
    new_weights = [await answer(server, contexts[0], f"new {began}", began=began) for began in (2, 0)]
    # Interrupted again, and continued again: what it has got since is found, too.
    [longer] = await interrupted(engine, server, contexts[:1], "longer", began=0)
    context_tok.append(len(contexts[0] + longer["tokens"]))
    emptied.append(await sleep_and_wake_up(engine, server, 3))
    last = await answer(server, contexts[0] + longer["tokens"], "last", began=0)
    prompts = [[token + k for token in PROMPT] for k in (2, 3)]
    begun = await interrupted(engine, server, prompts, "beside", unwanted=1)
    contexts = [prompt + one["tokens"] for prompt, one in zip(prompts, begun, strict=True)]
    emptied.append(await sleep_and_wake_up(engine, server, 4))
    beside = [await answer(server, context, f"after {k}", began=3) for k, context in enumerate(contexts)]
    found = vllms_own("external_prefix_cache_hits")
    engine.shutdown()
    return {
        "emptied": emptied,
        "context_tok": context_tok,
        "same_weights": same_weights,
        "new_weights": new_weights,
        "last": last,
        "beside_an_unwanted_one": beside,
        "vllm_found_tok": found,
    }
