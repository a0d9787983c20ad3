"""CPU per token of an engine's front end, which hands tokens from the engine to the server: as verl's server asks for
them, and as this recipe's does; both in one run, on vLLM's own output processor, fed with random tokens.

python -m benchmarks.front_end --requests 64 --tokens 500 4000 --repetitions 5

Writes `front_end.csv`: microseconds per token, medians over the repetitions.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from vllm.sampling_params import SamplingParams
from vllm.tokenizers.hf import get_cached_tokenizer
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.outputs import LogprobsLists

from benchmarks.support.front_end_request import admit, chunks_of
from benchmarks.support.supervised_training import STREAM_INTERVAL
from recipe.async_dapo.engines.engine import RequestTable, RunningRequest, StampingEngine
from recipe.async_dapo_lab.quickstart.tiny_model import build_tokenizer

PROMPT_IDS = [1, 2, 3]


class FedEngine:
    """`AsyncLLM` without an engine core: every request gets the given tokens, one a step, all requests together."""

    def __init__(self, tokenizer: Any, token_ids: list[int], *, stream_interval: int) -> None:
        self._processor = OutputProcessor(tokenizer, log_stats=False, stream_interval=stream_interval)
        self._token_ids = token_ids
        self._names: list[str] = []

    async def generate(self, *, prompt: Any, sampling_params: SamplingParams, request_id: str) -> Any:
        name, queue = admit(self._processor, request_id, PROMPT_IDS, sampling_params, None)
        self._names.append(name)
        async for chunk in chunks_of(queue):
            yield chunk

    async def feed(self) -> None:
        """One decode step after another, each read by all readers before the next."""
        for position, token in enumerate(self._token_ids):
            is_last = position == len(self._token_ids) - 1
            log_probs = LogprobsLists(np.array([[token]]), np.array([[-0.5]]), np.array([0]))
            outputs = [
                EngineCoreOutput(
                    request_id=name,
                    new_token_ids=[token],
                    new_logprobs=log_probs,
                    finish_reason=FinishReason.LENGTH if is_last else None,
                )
                for name in self._names
            ]
            self._processor.process_outputs(outputs)
            await asyncio.sleep(0)


async def read(engine: Any, name: str, length_tok: int) -> int:
    """All tokens of a request, as verl's server reads them: the last output holds them."""
    params = SamplingParams(max_tokens=length_tok, logprobs=0)
    async for chunk in engine.generate(prompt={}, sampling_params=params, request_id=name):
        last = chunk.outputs[0]
    return len([position[last.token_ids[i]].logprob for i, position in enumerate(last.logprobs)])


async def cpu_us_per_token(
    fed: FedEngine, reader: Callable[[str], Any], *, requests: int, length_tok: int
) -> tuple[float, int]:
    """CPU of this process per token [microseconds], and the tokens that arrived."""
    readers = [asyncio.create_task(reader(f"request-{k}")) for k in range(requests)]
    await asyncio.sleep(0)
    began = time.process_time()
    await fed.feed()
    arrived = sum(await asyncio.gather(*readers))
    return 1e6 * (time.process_time() - began) / (requests * length_tok), arrived


def measure(system: str, tokenizer: Any, *, requests: int, length_tok: int, seed: int) -> float:
    words = random.Random(seed)
    token_ids = [words.randrange(len(tokenizer)) for _ in range(length_tok)]
    interval = 1 if system == "verl" else STREAM_INTERVAL
    fed = FedEngine(tokenizer, token_ids, stream_interval=interval)
    if system == "verl":
        cost_us, arrived = asyncio.run(
            cpu_us_per_token(fed, lambda name: read(fed, name, length_tok), requests=requests, length_tok=length_tok)
        )
    else:
        cost_us, arrived = asyncio.run(_measure_recipe(fed, requests=requests, length_tok=length_tok))
    assert arrived == requests * length_tok, "tokens are missing"
    return cost_us


async def _measure_recipe(fed: FedEngine, *, requests: int, length_tok: int) -> tuple[float, int]:
    table = RequestTable()
    engine = StampingEngine(fed, table, lambda: 0)

    async def reader(name: str) -> int:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = RunningRequest(name, done, length_tok + 1)  # type: ignore[arg-type]
        table.add(request)
        await read(engine, name, length_tok)
        return len(request.deliver("completed", None, counts={}).log_probs or ())

    return await cpu_us_per_token(fed, reader, requests=requests, length_tok=length_tok)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64, help="in flight, on one engine")
    parser.add_argument("--tokens", type=int, nargs="+", default=[500, 4000], help="of a response")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("outputs", "front_end"))
    options = parser.parse_args()
    tokenizer = get_cached_tokenizer(build_tokenizer())
    rows = []
    for length_tok in options.tokens:
        costs_us: dict[str, list[float]] = {"verl": [], "async_dapo": []}
        for repetition in range(options.repetitions):
            for system, costs in costs_us.items():
                costs.append(
                    measure(system, tokenizer, requests=options.requests, length_tok=length_tok, seed=repetition)
                )
        medians = {system: round(statistics.median(costs), 2) for system, costs in costs_us.items()}
        ratio = round(medians["async_dapo"] / medians["verl"], 3)
        rows.append({"requests": options.requests, "tokens": length_tok, **medians, "ratio": ratio})
        print(rows[-1], flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(options.output / "front_end.csv", index=False)
