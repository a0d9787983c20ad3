"""A real vLLM engine, whose speed is measured; nothing is judged.

python -m recipe.async_dapo_lab.gpu_check.speed_process SETTINGS.json

The settings are `SpeedSettings`.
"""

import asyncio
import itertools
import json
import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

from verl.plugin.platform import get_platform

from .speed import LONG_TOK, SHORT_TOK, Cell, Facts, SpeedSettings, cells, record_line

os.environ.update(get_platform().rollout_env_vars())  # as verl does before it starts an engine
os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # verl's platform has asked CUDA, which no fork outlives

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

_FIRST_TOKEN = 4  # those before are special ones


class Probe:
    """An engine with the recipe's options, and requests of random tokens."""

    def __init__(self, settings: SpeedSettings, engine: AsyncLLM) -> None:
        self._settings, self._engine = settings, engine
        self._rng = random.Random(0)
        self._count = 0

    async def measure(self) -> tuple[Facts, list[dict[str, float]]]:
        """What is told of the engine, and the lines of its record."""
        settings, config = self._settings, self._engine.vllm_config
        cache = config.cache_config
        blocks_tok = (cache.num_gpu_blocks or 0) * cache.block_size
        room_tok = getattr(cache, "kv_cache_size_tokens", None) or blocks_tok  # fewer, where layers differ
        chosen = list(cells(kv_room_tok=room_tok, batches=settings.batches, contexts_tok=settings.contexts_tok))
        if chosen:
            await self._generate_s(chosen[0], LONG_TOK)  # warms up
        least_s = dict[tuple[Cell, int], float]()
        for _ in range(settings.times):  # all cells in turn, so that a slow minute is not one cell's
            for cell, tokens in itertools.product(chosen, (SHORT_TOK, LONG_TOK)):
                seconds = await self._generate_s(cell, tokens)
                least_s[cell, tokens] = min(seconds, least_s.get((cell, tokens), seconds))
        lines = [record_line(cell, short_s=least_s[cell, SHORT_TOK], long_s=least_s[cell, LONG_TOK]) for cell in chosen]
        facts = {
            "best_tokens_per_s": max((line["tokens_per_s"] for line in lines), default=0.0),
            "kv_room_tok": room_tok,
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "second_runner": bool(getattr(config, "use_v2_model_runner", False)),
        }
        return facts, lines

    async def _generate_s(self, cell: Cell, tokens: int) -> float:
        """All requests of a cell at once; each generates exactly so many tokens."""
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(cell.batch):
                tasks.create_task(self._answer(cell.context_tok, tokens))
        return time.perf_counter() - began_s

    async def _answer(self, context_tok: int, tokens: int) -> None:
        self._count += 1
        vocabulary = self._engine.vllm_config.model_config.get_vocab_size()
        prompt = [self._rng.randrange(_FIRST_TOKEN, vocabulary) for _ in range(context_tok)]
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, logprobs=0)
        async for _ in self._engine.generate({"prompt_token_ids": prompt}, params, f"request-{self._count}"):
            pass


def _arguments(settings: SpeedSettings) -> AsyncEngineArgs:
    return AsyncEngineArgs(
        model=settings.model,
        dtype=settings.dtype,
        load_format=settings.load_format,
        max_model_len=max(settings.contexts_tok) + LONG_TOK,
        max_num_seqs=settings.max_num_seqs,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        enforce_eager=settings.device == "cpu",
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        **settings.engine_kwargs,
    )


async def measured(settings: SpeedSettings) -> tuple[Facts, list[dict[str, float]]]:
    engine = AsyncLLM.from_engine_args(_arguments(settings))
    try:
        return await Probe(settings, engine).measure()
    finally:
        engine.shutdown()


def main(settings: SpeedSettings) -> None:
    facts, lines = asyncio.run(measured(settings))
    record = Path(settings.folder, "speed.jsonl")
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    record.with_name("facts.json").write_text(json.dumps({"record": str(record), **facts}) + "\n")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(SpeedSettings(**json.loads(Path(sys.argv[1]).read_text())))
