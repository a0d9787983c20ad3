"""vLLM with room for one request, and two of one prompt: the second waits while generation is paused, on our server."""

import asyncio
import os
from typing import Any

import pytest
from verl.plugin.platform import get_platform
from verl.workers.rollout.replica import TokenOutput

os.environ.update(get_platform().rollout_env_vars())  # as verl does before it starts an engine

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.reader import get_metrics_snapshot

from recipe.async_dapo.engines.load_meter import LoadMeter

from .scripted_engine import start_server

BLOCK_TOK = 16
PROMPT = [5 + k % 7 for k in range(4 * BLOCK_TOK)]
PARAMS = {"max_tokens": 600, "logprobs": True, "ignore_eos": True}
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 1024,
    "max_num_seqs": 1,
    "block_size": BLOCK_TOK,
    "enable_prefix_caching": True,
    "stream_interval": 1,
    "distributed_executor_backend": "async_dapo_cpu.executor.LocalExecutor",
}


def described(output: TokenOutput) -> dict[str, Any]:
    cached_tok = output.extra_fields.get("num_cached_tokens")
    return {"stop_reason": output.stop_reason, "tokens": len(output.token_ids), "cached_tok": cached_tok}


def vllms_own(name: str) -> float:
    """What vLLM's metrics say."""
    [value] = [metric.value for metric in get_metrics_snapshot() if metric.name == f"vllm:{name}"]
    return value


def kv_usage(engine: AsyncLLM, meter: LoadMeter, context_tok: int) -> dict[str, Any]:
    """The share of the KV cache in use: this recipe's meter, vLLM's own metrics, and by blocks of one request."""
    blocks = engine.vllm_config.cache_config.num_gpu_blocks
    load = meter.load()
    assert load.kv_room_tok == blocks * BLOCK_TOK
    return {
        "meter": load.kv_peak,
        "vllm": vllms_own("kv_cache_usage_perc"),
        "one_block": 1 / blocks,
        "expected": context_tok / load.kv_room_tok,
        "mean_tok": load.kv_tok_s / load.request_s,
        "least_and_most_tok": [len(PROMPT), context_tok + BLOCK_TOK],
    }


def counts(meter: LoadMeter) -> dict[str, list[float]]:
    """Since the engine was made: this recipe's meter, vLLM's own metrics."""
    load = meter.load()
    return {
        "generated_tok": [load.generated_tok, vllms_own("generation_tokens")],
        "preemptions": [load.preemptions, vllms_own("num_preemptions")],
    }


async def main(model: str) -> dict[str, Any]:
    from recipe.async_dapo.extensions.separate.holding_server import HoldingServer

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **ENGINE))
    meter = LoadMeter.attach(engine)
    server = start_server(pytest.MonkeyPatch(), engine, HoldingServer, delivery_tok=8)
    first = asyncio.create_task(server.generate(PROMPT, dict(PARAMS), "first"))
    piece = await first  # it generates
    second = asyncio.create_task(server.generate(PROMPT, PARAMS | {"max_tokens": 4}, "second"))
    while "second" not in server._requests._requests:  # noqa: ASYNC110 (nobody says so)
        await asyncio.sleep(0)
    await server.stop_generation("hold")
    waiting, held = await second, server._requests.get("first")
    assert held is not None
    usage = kv_usage(engine, meter, len(PROMPT) + len(piece.token_ids) + len(held.token_ids))
    await server.set_global_steps(1)
    await server.allow_generation()
    again = await server.generate(PROMPT, PARAMS | {"max_tokens": 4}, "second again")
    same = await server.generate(PROMPT, PARAMS | {"max_tokens": 4}, "third")
    outputs = {"piece": piece, "waiting": waiting, "again": again, "same": same}
    seen = {"kv_usage": usage, "counts": counts(meter)}
    engine.shutdown()
    return {name: described(output) for name, output in outputs.items()} | seen
