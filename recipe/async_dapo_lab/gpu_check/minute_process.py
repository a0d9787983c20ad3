"""Engines without Ray and verl's trainer: what a first minute on a GPU measures. Nothing is judged here.

python -m recipe.async_dapo_lab.gpu_check.minute_process SETTINGS.json

This process holds the weights, as a trainer does, and sends them through verl's sender; the engine's workers have the
recipe's receiver. The settings are `MinuteSettings`. Each part adds its facts to `facts.json` as it ends. One that
passes its limit ends the process, with the place where each thread stands in the log.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from verl.plugin.platform import get_platform

from ...async_dapo.config.extensions import load
from ...async_dapo.config.values import Drafts
from ...async_dapo.weights.stream import FOLDER_VARIABLE, WeightReceiver, private_handle, with_proof
from .counted_scheduler import FILE_VARIABLE, CountedAsyncScheduler, CountedScheduler
from .minute import Facts, MinuteSettings, Notes

os.environ.update(get_platform().rollout_env_vars())  # as verl does before it starts an engine
os.environ |= {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VERL_REPLICA_RANK": "0", "VERL_RAY_JOB_ID": "01000000"}

from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

RUN, BUCKET_MB = "minute", 64
VERLS_HANDLE = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"
NAN_BITS = 0x7FC0  # of bf16
LEFT_FREE_BYTES = 2**30  # beside what is overwritten
HOST_KV_GIB = 1.0
DRAFTED_TOK = 3
ABORTED_AT_TOK, LONG_TOK = 8, 400  # of a request on average, and of one that is not aborted

Answer = tuple[list[int], list[float]]  # tokens, log-probs


class Engine:
    """A vLLM engine, and what stands for its trainer."""

    def __init__(self, settings: MinuteSettings, **arguments: Any) -> None:
        self._settings = settings
        cpu = {"distributed_executor_backend": "async_dapo_cpu.executor.LocalExecutor", "enforce_eager": True}
        defaults: dict[str, Any] = {
            "model": settings.model,
            "dtype": settings.dtype,
            "max_model_len": 512,
            "max_num_seqs": 128,
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "kv_cache_memory_bytes": settings.kv_cache_bytes,
            "enable_prefix_caching": True,
            "enable_sleep_mode": True,
            "logprobs_mode": "processed_logprobs",
            "worker_extension_cls": f"{WeightReceiver.__module__}.{WeightReceiver.__qualname__}",
            **(cpu if settings.device == "cpu" else {"compilation_config": settings.graphs}),
        }
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**defaults | arguments))
        self._version = self._requests = 0

    def end(self) -> None:
        self._engine.shutdown()

    def about(self) -> Facts:
        config = self._engine.vllm_config
        return {
            "second_runner": bool(getattr(config, "use_v2_model_runner", False)),
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "kv_blocks": config.cache_config.num_gpu_blocks,
        }

    async def greedy(self) -> list[Answer]:
        """Tokens and log-probs of four prompts at temperature 0, one after the other: how a batch falls together would
        change the last bits.
        """
        return [await self._answer(k, 32) for k in range(4)]

    async def at_once(self, count: int, tokens: int) -> list[Answer]:
        return await asyncio.gather(*(self._answer(k, tokens) for k in range(count)))

    async def _answer(
        self,
        prompt: int,
        tokens: int,
        *,
        temperature: float = 0.0,
        on_tokens: Callable[[int], None] = lambda count: None,
    ) -> Answer:
        self._requests += 1
        params = SamplingParams(
            max_tokens=tokens,
            ignore_eos=True,
            logprobs=0,
            temperature=temperature,
            output_kind=RequestOutputKind.DELTA,
        )
        ids, log_probs = list[int](), list[float]()
        length_tok = 16 + prompt % 16  # of a block: requests reach the ends of their blocks in different steps
        context = {"prompt_token_ids": [4 + (7 * prompt + k) % 10 for k in range(length_tok)]}
        async for chunk in self._engine.generate(context, params, f"request-{self._requests}"):
            [completion] = chunk.outputs
            new = list(completion.token_ids)
            ids += new
            on_tokens(len(new))
            log_probs += [one[token].logprob for one, token in zip(completion.logprobs or (), new, strict=False)]
        return ids, log_probs

    async def send(self, weights: dict[str, torch.Tensor], factor: float = 1.0) -> None:
        """All weights, times a factor, as a trainer sends them."""
        self._version += 1
        is_cpu = self._settings.device == "cpu"
        expected = {"expected_run": RUN, "expected_version": self._version, "use_shm": is_cpu}
        loading = asyncio.create_task(self._engine.collective_rpc("update_weights_from_ipc", kwargs=expected))
        sender = BucketedWeightSender(
            zmq_handle=private_handle(VERLS_HANDLE, Path(self._settings.sockets)),
            bucket_size_mb=BUCKET_MB,
            use_shm=is_cpu,
        )
        scaled = ((name, weight * factor) for name, weight in weights.items())
        sending = with_proof(scaled, run=RUN, version=self._version)
        await asyncio.to_thread(lambda: asyncio.run(sender.async_send_weights(sending)))
        await loading
        await self._engine.reset_prefix_cache()

    async def asleep_and_awake(self, weights: dict[str, torch.Tensor]) -> Facts:
        """Answers before and after, and what was freed, and overwritten, before the engine woke."""
        before = await self.greedy()
        await self._engine.sleep(level=2)
        is_alone = self._settings.kv_cache_bytes is None
        freed = overwrite_free_memory() if self._settings.device == "cuda" and is_alone else {}
        await self._engine.wake_up(tags=["weights"])
        await self.send(weights)
        await self._engine.wake_up(tags=["kv_cache"])
        return {"before": before, "after": await self.greedy()} | freed

    async def scaled_and_restored(self, weights: dict[str, torch.Tensor]) -> Facts:
        before = await self.greedy()
        await self.send(weights, 1.01)
        scaled = await self.greedy()
        await self.send(weights)
        return {"before": before, "scaled": scaled, "restored": await self.greedy()}

    async def abort(self, count: int) -> Facts:
        """Requests that are ended in mid-flight: how long it took, and whether each token came with its log-prob."""
        began, due_tok, is_due = self._requests, count * ABORTED_AT_TOK, asyncio.Event()

        def note(tokens: int) -> None:
            nonlocal due_tok
            due_tok -= tokens
            if due_tok <= 0:
                is_due.set()

        tasks = [asyncio.create_task(self._answer(k, LONG_TOK, temperature=1.0, on_tokens=note)) for k in range(count)]
        await is_due.wait()
        began_s = time.perf_counter()
        await self._engine.abort([f"request-{began + 1 + k}" for k in range(count)])
        ended = await asyncio.gather(*tasks)
        seconds = time.perf_counter() - began_s
        return {
            "abort_s": seconds,
            "within_s": self._settings.abort_within_s,
            "requests": count,
            "aborted": sum(len(ids) < LONG_TOK for ids, _ in ended),
            "aborted_tok": sum(len(ids) for ids, _ in ended),
            "log_probs_whole": all(len(ids) == len(log_probs) for ids, log_probs in ended),
        }


def overwrite_free_memory() -> Facts:
    """Fill what is free of the GPU with NaN, and free it: what an engine finds there by accident is zero otherwise."""
    torch.cuda.synchronize()
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    filled = torch.full((max(0, free_bytes - LEFT_FREE_BYTES) // 2,), NAN_BITS, dtype=torch.int16, device="cuda")
    torch.cuda.synchronize()
    del filled
    torch.cuda.empty_cache()
    return {"free_asleep_gb": free_bytes / 1e9, "total_gb": total_bytes / 1e9}


def weights_of(settings: MinuteSettings) -> dict[str, torch.Tensor]:
    return load_file(Path(settings.model, "model.safetensors"), device=settings.device)


async def life(settings: MinuteSettings, notes: Notes) -> None:
    """From the start of an engine to its end, part by part."""
    weights = weights_of(settings)
    with notes.part("start") as facts:
        engine = Engine(settings)
        facts |= engine.about()
    try:
        with notes.part("asleep") as facts:
            await engine.send(weights)
            facts |= await engine.asleep_and_awake(weights)
        with notes.part("weights") as facts:
            facts |= await engine.scaled_and_restored(weights)
        with notes.part("abort") as facts:
            facts |= await engine.abort(settings.requests)
    except BaseException:
        engine.end()
        raise
    with notes.part("end"):
        engine.end()


async def fp8(settings: MinuteSettings, notes: Notes) -> None:
    """An FP8 cache, whose content and scales no one restores when the engine wakes."""
    weights = weights_of(settings)
    with notes.part("fp8") as facts:
        engine = Engine(settings, kv_cache_dtype="fp8")
        notes.engine(has_started=True)
        try:
            await engine.send(weights)
            facts |= await engine.asleep_and_awake(weights)
            facts |= await engine.scaled_and_restored(weights)
        finally:
            engine.end()


async def pressure(settings: MinuteSettings, notes: Notes, key: str) -> None:
    """Requests that fill a small cache: what each step preempts."""
    host_kv, drafts = {}, {}
    if key.startswith("host_kv"):
        host_kv = {"kv_transfer_config": load("host_kv", "connector.transfer_config")(HOST_KV_GIB, 1)}
    if key == "mtp":
        own_head = load("drafts", "speculative.SPECULATIVE_CONFIGS")[Drafts.MTP] | {
            "num_speculative_tokens": DRAFTED_TOK
        }
        drafts = {"model": settings.drafting_model, "speculative_config": own_head}
    is_async = settings.device == "cuda" and key != "host_kv"  # vLLM's default; a CPU has none
    scheduler = CountedAsyncScheduler if is_async else CountedScheduler
    steps = Path(settings.folder, f"{key}.steps")
    os.environ[FILE_VARIABLE] = str(steps)
    with notes.part(key) as facts:
        engine = Engine(
            settings,
            num_gpu_blocks_override=settings.pressure_blocks,
            block_size=16,
            async_scheduling=is_async,
            scheduler_cls=f"{scheduler.__module__}.{scheduler.__qualname__}",
            **host_kv,
            **drafts,
        )
        notes.engine(has_started=True)
        try:
            began_s = time.perf_counter()
            ended = await engine.at_once(settings.requests, settings.pressure_tok)
            seconds = time.perf_counter() - began_s
        finally:
            engine.end()
        preempted = counted(steps)
        facts |= {
            "preemptions": sum(preempted),
            "most_in_a_step": max(preempted, default=0),
            "steps": len(preempted),
            "step_ms": 1e3 * seconds / max(1, len(preempted)),
            "generated_tok": sum(len(ids) for ids, _ in ended),
            "wanted_tok": settings.requests * settings.pressure_tok,
        }


def counted(steps: Path) -> list[int]:
    """Requests that each step of the scheduler has preempted."""
    return [int(line) for line in steps.read_text("ascii").split()]


async def main(settings: MinuteSettings) -> None:
    os.environ[FOLDER_VARIABLE] = settings.sockets
    notes = Notes(settings)
    for key in settings.engines:
        notes.engine(has_started=False)
        if key in ("life", "fp8"):
            await {"life": life, "fp8": fp8}[key](settings, notes)
        else:
            await pressure(settings, notes, key)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(MinuteSettings(**json.loads(Path(sys.argv[1]).read_text()))))
