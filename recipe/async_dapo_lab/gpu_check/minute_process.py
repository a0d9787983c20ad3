"""An engine's life without Ray and verl's trainer: what a first minute on a GPU measures. Nothing is judged here.

python -m recipe.async_dapo_lab.gpu_check.minute_process SETTINGS.json

This process holds the weights, as a trainer does, and sends them through verl's sender; the engine's workers have the
recipe's receiver. The settings are `MinuteSettings`; each stage adds its facts to `facts.json` as it ends.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from verl.plugin.platform import get_platform

from ...async_dapo.engines.host_kv import transfer_config
from ...async_dapo.weights.stream import FOLDER_VARIABLE, WeightReceiver, private_handle, with_proof
from .minute import Facts, MinuteSettings

os.environ.update(get_platform().rollout_env_vars())  # as verl does before it starts an engine
os.environ |= {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VERL_REPLICA_RANK": "0", "VERL_RAY_JOB_ID": "01000000"}

from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

RUN, BUCKET_MB = "minute", 64
VERLS_HANDLE = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"
NAN_BITS = 0x7FC0  # of bf16
LEFT_FREE_BYTES = 2**30  # beside what is overwritten

Answer = tuple[list[int], list[float]]  # tokens, log-probs


class Preemptions(AggregateStatLoggerBase):
    """A stat logger of vLLM's: preempted requests of each step."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        if iteration_stats is not None:
            self.steps.append(iteration_stats.num_preempted_reqs)

    def log_engine_initialized(self) -> None:
        pass


class Life:
    """An engine, and what stands for its trainer."""

    def __init__(self, settings: MinuteSettings, engine: AsyncLLM, weights: dict[str, torch.Tensor]) -> None:
        self._settings, self._engine, self._weights = settings, engine, weights
        self._version = self._requests = 0

    async def greedy(self) -> list[Answer]:
        """Tokens and log-probs of four prompts at temperature 0, one after the other: how a batch falls together would
        change the last bits.
        """
        return [await self._answer(k, 32) for k in range(4)]

    async def at_once(self, count: int, tokens: int) -> list[Answer]:
        return await asyncio.gather(*(self._answer(k, tokens) for k in range(count)))

    async def _answer(self, prompt: int, tokens: int, *, temperature: float = 0.0) -> Answer:
        self._requests += 1
        params = SamplingParams(
            max_tokens=tokens,
            ignore_eos=True,
            logprobs=0,
            temperature=temperature,
            output_kind=RequestOutputKind.DELTA,
        )
        ids, log_probs = list[int](), list[float]()
        context = {"prompt_token_ids": [4 + (7 * prompt + k) % 10 for k in range(16)]}
        async for chunk in self._engine.generate(context, params, f"request-{self._requests}"):
            [completion] = chunk.outputs
            new = list(completion.token_ids)
            ids += new
            log_probs += [one[token].logprob for one, token in zip(completion.logprobs or (), new, strict=False)]
        return ids, log_probs

    async def send(self, factor: float = 1.0) -> None:
        """All weights, times a factor, as a trainer sends them."""
        self._version += 1
        expected = {"expected_run": RUN, "expected_version": self._version, "use_shm": self._settings.device == "cpu"}
        loading = asyncio.create_task(self._engine.collective_rpc("update_weights_from_ipc", kwargs=expected))
        sender = BucketedWeightSender(
            zmq_handle=private_handle(VERLS_HANDLE, Path(self._settings.folder)),
            bucket_size_mb=BUCKET_MB,
            use_shm=self._settings.device == "cpu",
        )
        scaled = ((name, weight * factor) for name, weight in self._weights.items())
        sending = with_proof(scaled, run=RUN, version=self._version)
        await asyncio.to_thread(lambda: asyncio.run(sender.async_send_weights(sending)))
        await loading
        await self._engine.reset_prefix_cache()

    async def asleep_and_awake(self) -> Facts:
        """What is freed, and overwritten, before the engine wakes."""
        await self._engine.sleep(level=2)
        freed = overwrite_free_memory() if self._settings.device == "cuda" else {}
        await self._engine.wake_up(tags=["weights"])
        await self.send()
        await self._engine.wake_up(tags=["kv_cache"])
        return freed

    async def abort(self, count: int) -> Facts:
        """Requests that are ended in mid-flight: how long it took, and whether each token came with its log-prob."""
        began = self._requests
        tasks = [asyncio.create_task(self._answer(k, 400, temperature=1.0)) for k in range(count)]
        await asyncio.sleep(self._settings.abort_after_s)
        began_s = time.perf_counter()
        await self._engine.abort([f"request-{began + 1 + k}" for k in range(count)])
        ended = await asyncio.gather(*tasks)
        seconds = time.perf_counter() - began_s
        whole = all(len(ids) == len(log_probs) for ids, log_probs in ended)
        return {"abort_s": seconds, "aborted_tok": sum(len(ids) for ids, _ in ended), "log_probs_whole": whole}


def overwrite_free_memory() -> Facts:
    """Fill what is free of the GPU with NaN, and free it: what an engine finds there by accident is zero otherwise."""
    torch.cuda.synchronize()
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    filled = torch.full((max(0, free_bytes - LEFT_FREE_BYTES) // 2,), NAN_BITS, dtype=torch.int16, device="cuda")
    torch.cuda.synchronize()
    del filled
    torch.cuda.empty_cache()
    return {"free_asleep_gb": free_bytes / 1e9, "total_gb": total_bytes / 1e9}


@contextmanager
def started(settings: MinuteSettings, **arguments: Any) -> Iterator[AsyncLLM]:
    cpu = {"distributed_executor_backend": "async_dapo_cpu.executor.LocalExecutor", "enforce_eager": True}
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=settings.model,
            dtype=settings.dtype,
            max_model_len=512,
            max_num_seqs=128,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            enable_prefix_caching=True,
            enable_sleep_mode=True,
            logprobs_mode="processed_logprobs",
            worker_extension_cls=f"{WeightReceiver.__module__}.{WeightReceiver.__qualname__}",
            **(cpu if settings.device == "cpu" else {"compilation_config": settings.graphs}),
            **arguments,
        )
    )
    try:
        yield engine
    finally:
        engine.shutdown()


async def life(settings: MinuteSettings) -> AsyncIterator[Facts]:
    """From the start of an engine to its end, stage by stage."""
    weights = load_file(Path(settings.model, "model.safetensors"), device=settings.device)
    began_s = time.perf_counter()
    with started(settings) as engine:
        it, config = Life(settings, engine, weights), engine.vllm_config
        yield {
            "start_s": time.perf_counter() - began_s,
            "second_runner": bool(getattr(config, "use_v2_model_runner", False)),
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "kv_blocks": config.cache_config.num_gpu_blocks,
        }
        await it.send()
        before = await it.greedy()
        yield {"before": before} | await it.asleep_and_awake() | {"after": await it.greedy()}
        await it.send(1.01)
        scaled = await it.greedy()
        await it.send()
        yield {"scaled": scaled, "restored": await it.greedy()}
        yield await it.abort(64)


async def pressure(settings: MinuteSettings, **arguments: Any) -> Facts:
    """Requests that fill a small cache: what each step preempts."""
    with started(settings, num_gpu_blocks_override=settings.pressure_blocks, block_size=16, **arguments) as engine:
        meter = Preemptions()
        engine.logger_manager.stat_loggers.append(meter)
        began_s = time.perf_counter()
        ended = await Life(settings, engine, {}).at_once(64, settings.pressure_tok)
        seconds = time.perf_counter() - began_s
    generated = sum(len(ids) for ids, _ in ended)
    return {
        "preemptions": sum(meter.steps),
        "most_in_a_step": max(meter.steps, default=0),
        "tokens_per_s": generated / seconds,
        "generated_tok": generated,
    }


async def main(settings: MinuteSettings) -> None:
    folder = Path(settings.folder)
    os.environ[FOLDER_VARIABLE] = str(folder)
    facts: Facts = {}

    def note(more: Facts) -> None:
        facts.update(more)
        folder.joinpath("facts.json").write_text(json.dumps(facts) + "\n")

    if settings.stage == "life":
        async for more in life(settings):
            note(more)
        return
    host_kv = {"kv_transfer_config": transfer_config(1.0, 1)}
    note({"plain": await pressure(settings)})
    note({"host_kv": await pressure(settings, **host_kv, async_scheduling=False)})
    if settings.device == "cuda":  # a CPU schedules synchronously anyway
        note({"host_kv_async": await pressure(settings, **host_kv)})


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(MinuteSettings(**json.loads(Path(sys.argv[1]).read_text()))))
