"""A real vLLM engine, taken through what the recipe asks of it. Each section writes what it measured; none judges.

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
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from verl.plugin.platform import get_platform
from verl.utils.device import get_torch_device, is_support_ipc

from .assets import tensor_sizes
from .engine import RUN, EngineSettings, Facts, Section

os.environ.update(get_platform().rollout_env_vars())  # as verl does before it starts an engine

from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from ...async_dapo.engines.engine import RequestTable, RunningRequest, StampingEngine
from ...async_dapo.engines.load_meter import LoadMeter
from ...async_dapo.weights.adapter import EngineWatch, WatchedSender
from ...async_dapo.weights.stream import FOLDER_VARIABLE, NamedTensor, private_handle, stamped, use_for_engine
from .receiver import BALLAST, BallastReceiver
from .speed import LONG_TOK, SHORT_TOK, Cell, cells, record_line

Asked = tuple[list[int], RunningRequest]  # a prompt, and its request

_FIRST_TOKEN = 4  # those before are special ones
_QUIET_S = 0.5  # in which a paused engine must deliver nothing
_TRANSFER_TIMEOUT_S = 120.0
_SCALE = 1.5  # of the head, between two versions of the weights: log-probs differ far more than by rounding


class Probe:
    """An engine of the recipe's kind, with requests of random tokens."""

    def __init__(self, settings: EngineSettings, engine: AsyncLLM) -> None:
        self._settings = settings
        self._version = 0
        self._requests = RequestTable()
        self._vllm = engine
        self._engine = StampingEngine(engine, self._requests, lambda: self._version)
        self._rng = random.Random(0)
        self._count = 0
        self._model: Any = None
        self._finished: list[Asked] = []

    def sections(self) -> dict[Section, Callable[[], Awaitable[dict[str, Any]]]]:
        return {
            Section.GENERATE: self.generate,
            Section.LOG_PROBS: self.log_probs,
            Section.ABORT: self.abort,
            Section.KEEP: self.keep,
            Section.PREFIX_CACHE: self.prefix_cache,
            Section.DRAFTS: self.drafts,
            Section.SLEEP_1: lambda: self.sleep(1),
            Section.SLEEP_2: lambda: self.sleep(2),
            Section.WEIGHTS: self.weights,
            Section.SPEED: self.speed,
        }

    async def generate(self) -> Facts:
        began_s = time.perf_counter()
        self._finished = await _all(self._start_usual(self._settings.requests))
        return self._generated(began_s)

    def _generated(self, began_s: float) -> Facts:
        return {
            "requests": len(self._finished),
            "complete": _complete(self._finished, self._settings.response_tok),
            "tokens": _tokens(self._finished),
            "generating_s": time.perf_counter() - began_s,
        }

    async def log_probs(self) -> Facts:
        """Of what the first section has generated: the engine's against a forward pass of transformers."""
        return self._differences(self._finished[: self._settings.compared])

    async def drafts(self) -> Facts:
        """Each prompt twice, one answer after the other; both are greedy, so that the first says what comes next."""
        settings, prompts = self._settings, [self._prompt() for _ in range(self._settings.requests)]
        meter = LoadMeter.attach(self._vllm)
        for _ in range(2):
            meter.reset()
            began_s = time.perf_counter()
            started = [self._start(prompt, settings.response_tok, temperature=0.0) for prompt in prompts]
            self._finished = await _all(started)
        load = meter.load()
        counts = {"drafted_tok": load.drafted_tok, "accepted_tok": load.accepted_tok}
        return self._generated(began_s) | counts | await self.log_probs()

    async def abort(self) -> Facts:
        """One of two requests, once both generate."""
        started = self._start_usual(2)
        await _begun(started)
        (_, unwanted), (_, wanted) = started
        began_s = time.perf_counter()
        self._requests.mark_aborted([unwanted.request_id])
        await self._engine.abort(unwanted.request_id)
        await asyncio.wait([unwanted.finished])
        await self._engine.is_sleeping()  # the engine core takes calls in order
        seconds = time.perf_counter() - began_s
        await asyncio.wait([wanted.finished])
        return {
            "abort_s": seconds,
            "aborted_reason": unwanted.finish_reason,
            "aborted_tok": len(unwanted.token_ids),
            "kept_log_probs": len(unwanted.log_probs),
            "other_tok": len(wanted.token_ids),
            "wanted_tok": self._settings.response_tok,
        }

    async def keep(self) -> Facts:
        """A pause that keeps requests and their KV cache, and the version they go on with."""
        started = self._start_usual(4)
        await _begun(started)
        paused_s = await _seconds_of(self._engine.pause_generation(mode="keep", clear_cache=False))
        await asyncio.wait([request.finished for _, request in started], timeout=_QUIET_S)  # what was on its way
        before_tok = _tokens(started)
        await asyncio.wait([request.finished for _, request in started], timeout=_QUIET_S)
        meanwhile_tok = _tokens(started) - before_tok
        self._version += 1
        resumed_s = await _seconds_of(self._engine.resume_generation())
        await _all(started)
        return {
            "pause_s": paused_s,
            "resume_s": resumed_s,
            "before_tok": before_tok,
            "meanwhile_tok": meanwhile_tok,
            "complete": _complete(started, self._settings.response_tok),
            "requests": len(started),
            "of_two_versions": sum(len(request.segments) == 2 for _, request in started),
            **self._differences(started),
        }

    async def prefix_cache(self) -> Facts:
        """A prompt meets its blocks again under its own version only, and no more once the cache is reset."""
        prompt = self._prompt(2 * self._vllm.vllm_config.cache_config.block_size + 1)
        await self._cached_tok(prompt)
        same_tok = await self._cached_tok(prompt)
        self._version += 1
        next_tok = await self._cached_tok(prompt)
        began_s = time.perf_counter()
        was_reset = await self._engine.reset_prefix_cache()
        reset_s = time.perf_counter() - began_s
        return {
            "same_version_tok": same_tok,
            "next_version_tok": next_tok,
            "was_reset": bool(was_reset),
            "after_reset_tok": await self._cached_tok(prompt),
            "reset_s": reset_s,
        }

    async def sleep(self, level: int) -> Facts:
        """Level 1 keeps the weights in host memory; after level 2 they are sent again."""
        get_torch_device().synchronize()
        before = get_torch_device().mem_get_info()[0]
        sleep_s = await _seconds_of(self._engine.sleep(level=level))
        asleep = get_torch_device().mem_get_info()[0]
        began_s = time.perf_counter()
        await self._engine.wake_up(tags=["weights"])
        if level == 2:
            await self._send(self._named_weights())
        await self._engine.wake_up(tags=["kv_cache"])
        wake_s = time.perf_counter() - began_s
        await self._engine.reset_prefix_cache()
        started = await _all(self._start_usual(4))
        after = get_torch_device().mem_get_info()[0]
        return {
            "sleep_s": sleep_s,
            "wake_s": wake_s,
            "freed_bytes": asleep - before,
            "leaked_bytes": before - after,
            **self._differences(started),
        }

    async def weights(self) -> Facts:
        """New weights through the recipe's sender, with ballast; then the ballast alone as verl's own adapter sends."""
        before = self._finished[: self._settings.compared]
        model = self._trainers_model()
        with torch.no_grad():
            model.lm_head.weight.mul_(_SCALE)
        self._version += 1
        sent = [*self._ballast(), *self._named_weights()]
        seconds = await _seconds_of(self._send(sent))
        verls_s = await _seconds_of(self._send([*self._ballast(), *self._named_weights()], as_verl=True))
        mismatch = await self._refusal()
        await self._engine.reset_prefix_cache()
        started = await _all(self._start_usual(4))
        return {
            "bytes": sum(tensor.nbytes for _, tensor in sent),
            "tensors": len(sent),
            "send_s": seconds,
            "verls_s": verls_s,
            "way": "CUDA IPC" if is_support_ipc() else "shared memory",
            "refusal": mismatch,
            "old_mean_diff": self._differences(before)["mean_diff"],
            **self._differences(started),
        }

    async def speed(self) -> Facts:
        settings, room_tok = self._settings, _kv_room_tok(self._vllm)
        chosen = list(cells(kv_room_tok=room_tok, batches=settings.batches, contexts_tok=settings.contexts_tok))
        if chosen:
            await self._generate_s(chosen[0].batch, chosen[0].context_tok, LONG_TOK)  # warms up
        prefills, least_s = [], dict[tuple[Cell, int], float]()
        for _ in range(settings.times):  # all cells in turn, so that a slow minute is not one cell's
            for cell, tokens in itertools.product(chosen, (SHORT_TOK, LONG_TOK)):
                seconds = await self._generate_s(cell.batch, cell.context_tok, tokens)
                least_s[cell, tokens] = min(seconds, least_s.get((cell, tokens), seconds))
        lines = [record_line(cell, short_s=least_s[cell, SHORT_TOK], long_s=least_s[cell, LONG_TOK]) for cell in chosen]
        for context_tok in settings.contexts_tok:
            seconds = await self._generate_s(1, context_tok, 1)
            prefills.append({"context_tok": context_tok, "seconds": seconds})
        return {"record": lines, "prefills": prefills, "kv_room_tok": room_tok}

    async def _generate_s(self, batch: int, context_tok: int, tokens: int) -> float:
        began_s = time.perf_counter()
        await _all([self._start(self._prompt(context_tok), tokens) for _ in range(batch)])
        return time.perf_counter() - began_s

    def _prompt(self, tokens: int | None = None) -> list[int]:
        vocabulary = self._vllm.vllm_config.model_config.get_vocab_size()
        return [self._rng.randrange(_FIRST_TOKEN, vocabulary) for _ in range(tokens or self._settings.prompt_tok)]

    def _start(self, prompt: list[int], tokens: int, *, temperature: float = 1.0) -> Asked:
        """A request that generates exactly so many tokens."""
        self._count += 1
        name = f"request-{self._count}"
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, logprobs=0, temperature=temperature)
        stream = self._engine.generate(prompt={"prompt_token_ids": prompt}, sampling_params=params, request_id=name)
        request = RunningRequest(name, asyncio.ensure_future(_last(stream)), piece_tok=1)
        self._requests.add(request)
        return prompt, request

    def _start_usual(self, count: int) -> list[Asked]:
        """Requests of the lengths that are set."""
        return [self._start(self._prompt(), self._settings.response_tok) for _ in range(count)]

    async def _cached_tok(self, prompt: list[int]) -> int:
        """Tokens of a prompt that the prefix cache had."""
        _, request = self._start(prompt, 2)
        return int((await request.finished).num_cached_tokens or 0)

    def _trainers_model(self) -> Any:
        """transformers', with the attention that the trainer has."""
        if self._model is None:
            self._model = AutoModelForCausalLM.from_pretrained(
                self._settings.model,
                dtype=getattr(torch, self._settings.dtype),
                attn_implementation=self._settings.attention,
            ).to(self._settings.device)
            self._model.eval()
        return self._model

    @torch.no_grad()
    def _differences(self, finished: Sequence[Asked]) -> dict[str, float]:
        """Between the engine's log-probs and the trainer's model, over all tokens [nats]."""
        model, differences = self._trainers_model(), []
        for prompt, request in finished:
            ids = torch.tensor([prompt + request.token_ids], device=self._settings.device)
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
            sampled = torch.log_softmax(logits, -1).gather(-1, ids[0, len(prompt) :, None])[:, 0]
            recorded = torch.tensor(request.log_probs, device=sampled.device)
            differences += (sampled - recorded).abs().tolist()
        return {
            "compared_tok": len(differences),
            "mean_diff": statistics.fmean(differences),
            "max_diff": max(differences),
        }

    def _named_weights(self) -> Iterator[NamedTensor]:
        for name, tensor in self._trainers_model().state_dict().items():
            yield name, tensor.detach()

    def _ballast(self) -> Iterator[NamedTensor]:
        """As many of an 8B model's tensors as there is room for; all are one tensor here, and travel one by one."""
        dtype, sizes = getattr(torch, self._settings.dtype), tensor_sizes()
        room = self._settings.ballast_bytes // dtype.itemsize
        sizes = [size for size, until in zip(sizes, itertools.accumulate(sizes), strict=True) if until <= room]
        tensor = torch.ones(max(sizes), dtype=dtype, device=self._settings.device)
        for number, size in enumerate(sizes):
            yield f"{BALLAST}{number}", tensor[:size]

    async def _send(
        self,
        weights: Iterable[NamedTensor] | AsyncIterable[NamedTensor],
        *,
        as_verl: bool = False,
        expected: int | None = None,
    ) -> None:
        """From a thread, as the trainer sends from another process.

        Args:
            as_verl: without stamps, by verl's own classes.
            expected: version that the engine is told to expect, instead of the one that is sent.
        """
        watch = EngineWatch([])
        options: dict[str, Any] = {
            "zmq_handle": _handle(Path(os.environ[FOLDER_VARIABLE])),
            "bucket_size_mb": self._settings.bucket_mb,
            "use_shm": not is_support_ipc(),
        }
        method, expects, stream, sender = "receive_as_verl", dict[str, Any](), weights, BucketedWeightSender(**options)
        if not as_verl:
            method = "update_weights_from_ipc"
            expects = {"expected_run": RUN, "expected_version": self._version if expected is None else expected}
            stream = stamped(weights, run=RUN, version=self._version)
            sender = WatchedSender(watch, timeout_s=_TRANSFER_TIMEOUT_S, **options)
        call = self._vllm.collective_rpc(method, kwargs={"use_shm": options["use_shm"], **expects})
        received = asyncio.ensure_future(call)
        received.add_done_callback(lambda done: None if done.cancelled() else watch.note(done.exception()))
        await asyncio.to_thread(asyncio.run, sender.async_send_weights(stream))
        await received

    async def _refusal(self) -> str:
        """What an engine says that is sent another version than it was told to expect."""
        try:
            await self._send(self._named_weights(), expected=self._version + 1)
        except Exception as error:  # vLLM's own kind, with the worker's message in it
            return next((line for line in str(error).splitlines() if "expected weights" in line), str(error))
        return ""


def _handle(folder: Path) -> str:
    job, replica = os.environ["VERL_RAY_JOB_ID"], os.environ["VERL_REPLICA_RANK"]
    return private_handle(f"ipc:///tmp/rl-colocate-zmq-{job}-replica-{replica}-rank-0.sock", folder)


def _tokens(started: Sequence[Asked]) -> int:
    return sum(len(request.token_ids) for _, request in started)


def _complete(started: Sequence[Asked], tokens: int) -> int:
    return sum(len(request.token_ids) == tokens for _, request in started)


async def _begun(started: Sequence[Asked]) -> None:
    await asyncio.wait([asyncio.ensure_future(request.has_piece.wait()) for _, request in started])


async def _all(started: list[Asked]) -> list[Asked]:
    await asyncio.wait([request.finished for _, request in started])
    return started


async def _seconds_of(call: Awaitable[Any]) -> float:
    began_s = time.perf_counter()
    await call
    return time.perf_counter() - began_s


async def _last(stream: AsyncIterator[Any]) -> Any:
    async for output in stream:
        last = output
    return last


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
        enable_sleep_mode=settings.device != "cpu",
        logprobs_mode="processed_logprobs",
        stream_interval=1,
        worker_extension_cls=f"{BallastReceiver.__module__}.{BallastReceiver.__qualname__}",
        **settings.engine_kwargs,
    )


async def main(settings: EngineSettings) -> None:
    def tell(section: str, facts: Facts) -> None:
        line = {"section": section, "seconds": time.perf_counter() - began_s, **facts}
        with Path(settings.facts).open("a") as file:
            file.write(json.dumps(line) + "\n")

    began_s = time.perf_counter()
    engine = AsyncLLM.from_engine_args(_arguments(settings))
    config = engine.vllm_config
    started = {
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "second_runner": bool(getattr(config, "use_v2_model_runner", False)),
        "kv_room_tok": _kv_room_tok(engine),
    }
    tell(Section.START, started)
    try:
        for name, measure in Probe(settings, engine).sections().items():
            if name in settings.sections:
                began_s = time.perf_counter()
                tell(name, await measure())
    finally:
        engine.shutdown()


def _kv_room_tok(engine: AsyncLLM) -> int:
    cache = engine.vllm_config.cache_config
    return (cache.num_gpu_blocks or 0) * cache.block_size


def run() -> None:
    settings = EngineSettings.read(Path(sys.argv[1]))
    folder = Path(settings.sockets)
    os.environ |= {FOLDER_VARIABLE: str(folder), "VERL_REPLICA_RANK": "0", "VERL_RAY_JOB_ID": "01000000"}
    use_for_engine(folder)
    with suppress(KeyboardInterrupt):
        asyncio.run(main(settings))


if __name__ == "__main__":
    run()
