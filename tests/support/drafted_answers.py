"""vLLM with drafts from siblings and without: what it samples, and with which log-probs.

python -m tests.support.drafted_answers MODEL
"""

import asyncio
import json
import os
import sys
from collections import Counter
from typing import Any

import pytest
from verl.plugin.platform import get_platform

os.environ.update(get_platform().rollout_env_vars())  # as verl does before it starts an engine

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from recipe.async_dapo.core.drafts import MOST_DRAFT_TOK, RequestName
from recipe.async_dapo.engines.drafts import SPECULATIVE_CONFIG
from recipe.async_dapo.engines.load_meter import LoadMeter
from recipe.async_dapo.engines.server import AsyncDAPOServer
from recipe.async_dapo.weights.stream import WeightReceiver

from .scripted_engine import start_server

PROMPT = [5 + k % 7 for k in range(24)]
SAMPLED_TOK = 24
SAMPLES = 1024  # at each temperature
LIKELY = 2  # tokens to sample from: so few that answers of a model that knows nothing repeat each other
LIMIT_TOK = 96
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 64,
    "seed": 0,
    "enable_prefix_caching": True,
    "logprobs_mode": "processed_logprobs",
    "distributed_executor_backend": "async_dapo_cpu.executor.LocalExecutor",
    "worker_extension_cls": f"{WeightReceiver.__module__}.{WeightReceiver.__qualname__}",
}


async def answers(
    server: AsyncDAPOServer, temperature: float, count: int, group: str, **params: Any
) -> list[tuple[list[int], list[float]]]:
    """Tokens and log-probs of so many answers, 64 at a time."""
    places, asked = asyncio.Semaphore(64), {"logprobs": True, "ignore_eos": True, "max_tokens": SAMPLED_TOK} | params

    async def answer(number: int) -> tuple[list[int], list[float]]:
        async with places:
            name = RequestName(f"{group}-{number // 64}", str(number), len(PROMPT)).prefix() + "x"
            output = await server.generate(PROMPT, {"temperature": temperature} | asked, name)
        return output.token_ids, output.log_probs

    return await asyncio.gather(*(answer(number) for number in range(count)))


async def main(model: str, drafts: bool) -> dict[str, Any]:
    arguments = ENGINE | {"max_model_len": len(PROMPT) + LIMIT_TOK}
    if drafts:
        arguments |= {"speculative_config": SPECULATIVE_CONFIG}
        arguments["max_model_len"] += MOST_DRAFT_TOK
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **arguments))
    await engine.collective_rpc("bind_drafts")
    meter = LoadMeter.attach(engine)
    server = start_server(pytest.MonkeyPatch(), engine)
    seen: dict[str, Any] = {}
    greedy = await answers(server, 0.0, 64, "greedy", max_tokens=LIMIT_TOK)
    seen["greedy"] = [tokens for tokens, _ in greedy]
    for temperature in (1.0, 0.6):
        sampled = await answers(server, temperature, SAMPLES, f"at {temperature}", top_k=LIKELY)
        counts = [Counter(tokens[at] for tokens, _ in sampled) for at in (1, SAMPLED_TOK // 2, SAMPLED_TOK - 1)]
        log_probs: dict[str, list[float]] = {}
        for tokens, values in sampled:
            log_probs.setdefault(str(tokens[:2]), []).append(sum(values[:2]))
        seen[str(temperature)] = {
            "counts": [dict(count) for count in counts],
            "mean_log_prob": sum(sum(values) for _, values in sampled) / (SAMPLES * SAMPLED_TOK),
            "spread": max(max(values) - min(values) for values in log_probs.values()),
            "lengths": sorted({len(tokens) for tokens, _ in sampled} | {len(values) for _, values in sampled}),
        }
    load = meter.load()
    seen["drafted_tok"], seen["accepted_tok"] = load.drafted_tok, load.accepted_tok
    seen["generated_tok"], seen["step_requests"] = load.generated_tok, load.step_requests
    engine.shutdown()
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(sys.argv[1], drafts=sys.argv[2] == "siblings"))) + "\n")
