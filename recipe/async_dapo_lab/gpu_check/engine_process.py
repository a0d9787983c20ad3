"""A real vLLM engine, asked for tokens, log-probs, drafts and speed. Each section writes what it measured; none judges.

python -m recipe.async_dapo_lab.gpu_check.engine_process SETTINGS.json

The settings are `EngineSettings`; the facts go to its file, a line of JSON for each section that has ended.
"""

import asyncio
import itertools
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from verl.plugin.platform import get_platform

from .engine import EngineSettings, Facts, Section

os.environ.update(get_platform().rollout_env_vars())  # as verl does before it starts an engine
os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # verl's platform has asked CUDA, which no fork outlives

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from ...async_dapo.engines.load_meter import LoadMeter
from .speed import LONG_TOK, SHORT_TOK, Cell, cells, record_line

Answer = tuple[list[int], list[int], list[float]]  # tokens of prompt and response, log-probs of the response's [nats]

_FIRST_TOKEN = 4  # those before are special ones


class Probe:
    """An engine with the recipe's options, and requests of random tokens."""

    def __init__(self, settings: EngineSettings, engine: AsyncLLM) -> None:
        self._settings, self._engine = settings, engine
        self._rng = random.Random(0)
        self._count = 0
        self._answers: list[Answer] = []

    def sections(self) -> dict[Section, Callable[[], Awaitable[Facts]]]:
        return {
            Section.START: self.start,
            Section.GENERATE: self.generate,
            Section.LOG_PROBS: self.log_probs,
            Section.DRAFTS: self.drafts,
            Section.SPEED: self.speed,
        }

    async def start(self) -> Facts:
        config = self._engine.vllm_config
        return {
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "second_runner": bool(getattr(config, "use_v2_model_runner", False)),
            "kv_room_tok": self._kv_room_tok(),
        }

    async def generate(self) -> Facts:
        return await self._generated(self._prompts(), temperature=1.0)

    async def _generated(self, prompts: Iterable[list[int]], *, temperature: float) -> Facts:
        began_s, settings = time.perf_counter(), self._settings
        self._answers = await self._ask(prompts, settings.response_tok, temperature=temperature)
        lengths = [len(response) for _, response, _ in self._answers]
        return {
            "requests": len(lengths),
            "complete": lengths.count(settings.response_tok),
            "tokens": sum(lengths),
            "generating_s": time.perf_counter() - began_s,
        }

    @torch.no_grad()
    async def log_probs(self) -> Facts:
        """The engine's of what was generated last, against a forward pass of transformers as the trainer does."""
        settings, differences = self._settings, list[float]()
        model: Any = AutoModelForCausalLM.from_pretrained(
            settings.model, dtype=getattr(torch, settings.dtype), attn_implementation=settings.attention
        )
        model.to(settings.device).eval()
        for prompt, response, log_probs in self._answers[: settings.compared]:
            ids = torch.tensor([prompt + response], device=settings.device)
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
            sampled = torch.log_softmax(logits, -1).gather(-1, ids[0, len(prompt) :, None])[:, 0]
            differences += (sampled - torch.tensor(log_probs, device=sampled.device)).abs().tolist()
        return {
            "compared_tok": len(differences),
            "mean_diff": statistics.fmean(differences),
            "max_diff": max(differences),
        }

    async def drafts(self) -> Facts:
        """Each prompt twice, one answer after the other; both are greedy, so that the first says what comes next."""
        prompts, meter = list(self._prompts()), LoadMeter.attach(self._engine)
        for _ in range(2):
            meter.reset()
            generated = await self._generated(prompts, temperature=0.0)
        load = meter.load()
        counts = {"drafted_tok": load.drafted_tok, "accepted_tok": load.accepted_tok}
        return generated | counts | await self.log_probs()

    async def speed(self) -> Facts:
        settings, room_tok = self._settings, self._kv_room_tok()
        chosen = list(cells(kv_room_tok=room_tok, batches=settings.batches, contexts_tok=settings.contexts_tok))
        if chosen:
            await self._generate_s(chosen[0], LONG_TOK)  # warms up
        least_s = dict[tuple[Cell, int], float]()
        for _ in range(settings.times):  # all cells in turn, so that a slow minute is not one cell's
            for cell, tokens in itertools.product(chosen, (SHORT_TOK, LONG_TOK)):
                seconds = await self._generate_s(cell, tokens)
                least_s[cell, tokens] = min(seconds, least_s.get((cell, tokens), seconds))
        lines = [record_line(cell, short_s=least_s[cell, SHORT_TOK], long_s=least_s[cell, LONG_TOK]) for cell in chosen]
        record = Path(settings.facts).with_name("speed.jsonl")
        record.write_text("".join(json.dumps(line) + "\n" for line in lines))
        best = max((line["tokens_per_s"] for line in lines), default=0.0)
        return {"record": str(record), "kv_room_tok": room_tok, "best_tokens_per_s": best}

    async def _generate_s(self, cell: Cell, tokens: int) -> float:
        began_s = time.perf_counter()
        await self._ask([self._prompt(cell.context_tok) for _ in range(cell.batch)], tokens)
        return time.perf_counter() - began_s

    def _prompts(self) -> Iterable[list[int]]:
        return (self._prompt(self._settings.prompt_tok) for _ in range(self._settings.requests))

    def _prompt(self, tokens: int) -> list[int]:
        vocabulary = self._engine.vllm_config.model_config.get_vocab_size()
        return [self._rng.randrange(_FIRST_TOKEN, vocabulary) for _ in range(tokens)]

    async def _ask(self, prompts: Iterable[list[int]], tokens: int, *, temperature: float = 1.0) -> list[Answer]:
        """All at once; each generates exactly so many tokens."""
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(self._answer(prompt, tokens, temperature)) for prompt in prompts]
        return [task.result() for task in asked]

    async def _answer(self, prompt: list[int], tokens: int, temperature: float) -> Answer:
        self._count += 1
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, logprobs=0, temperature=temperature)
        stream = self._engine.generate({"prompt_token_ids": prompt}, params, f"request-{self._count}")
        last: RequestOutput | None = None
        async for output in stream:
            last = output
        assert last is not None and last.outputs[0].logprobs is not None
        response = list(last.outputs[0].token_ids)
        said = zip(response, last.outputs[0].logprobs, strict=True)
        return prompt, response, [float(choices[token].logprob) for token, choices in said]

    def _kv_room_tok(self) -> int:
        cache = self._engine.vllm_config.cache_config
        return (cache.num_gpu_blocks or 0) * cache.block_size


def _arguments(settings: EngineSettings) -> AsyncEngineArgs:
    return AsyncEngineArgs(
        model=settings.model,
        dtype=settings.dtype,
        load_format=settings.load_format,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        enforce_eager=settings.device == "cpu",
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        **settings.engine_kwargs,
    )


def _write(file: Path, line: dict[str, Any]) -> None:
    with file.open("a") as facts:
        facts.write(json.dumps(line) + "\n")


async def main(settings: EngineSettings) -> None:
    began_s = time.perf_counter()
    engine = AsyncLLM.from_engine_args(_arguments(settings))
    try:
        for name, measure in Probe(settings, engine).sections().items():
            if name in (Section.START, *settings.sections):
                facts = await measure()
                line = {"section": name, "seconds": time.perf_counter() - began_s, **facts}
                _write(Path(settings.facts), line)
            began_s = time.perf_counter()
    finally:
        engine.shutdown()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(EngineSettings(**json.loads(Path(sys.argv[1]).read_text()))))
