"""A vLLM server that can be stopped at once and that says which policy version sampled each token."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.actor import exit_actor
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from .engine_requests import ABORTED, PAUSED, UNKNOWN

logger = logging.getLogger(__name__)

PAUSE_MODES = ("abort", "keep")


@dataclass(slots=True)
class _Request:
    """A request in the engine, and what of its output has not been delivered yet."""

    finished: asyncio.Task[TokenOutput]
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    segments: list[tuple[int, int]] = field(default_factory=list)  # (policy version, tokens)
    finish_reason: str | None = None
    is_aborted: bool = False

    def add(self, version: int, token_ids: list[int], log_probs: list[float]) -> None:
        if not token_ids:
            return
        self.token_ids += token_ids
        self.log_probs += log_probs
        if self.segments and self.segments[-1][0] == version:
            self.segments[-1] = (version, self.segments[-1][1] + len(token_ids))
        else:
            self.segments.append((version, len(token_ids)))

    def deliver(self, stop_reason: str | None, version: int | None) -> TokenOutput:
        """Everything since the last delivery."""
        output = TokenOutput(
            token_ids=self.token_ids,
            log_probs=self.log_probs,
            stop_reason=stop_reason,
            extra_fields={"global_steps": version, "segments": self.segments, "finish_reason": self.finish_reason},
        )
        self.token_ids, self.log_probs, self.segments = [], [], []
        return output


class StampingEngine:
    """vLLM's engine, whose `generate` yields a request's first chunk and its last one.

    The output is read in increments, so that the front end's work per token does not grow with the length of the
    response; every increment is noted with the policy version under which it arrived. Prompts are salted with that
    version, so that no request meets prefix-cache entries of older weights.
    """

    def __init__(self, engine: Any, server: "AsyncDAPOServer") -> None:
        self._engine = engine
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, *, prompt: dict[str, Any], sampling_params: SamplingParams, request_id: str, **kwargs: Any
    ) -> AsyncIterator[RequestOutput]:
        sampling_params.output_kind = RequestOutputKind.DELTA
        salted = {**prompt, "cache_salt": f"policy-{self._server.global_steps}"}
        stream = self._engine.generate(prompt=salted, sampling_params=sampling_params, request_id=request_id, **kwargs)
        is_first = True
        async for chunk in stream:
            _trim_log_probs(chunk)
            self._server.note_chunk(request_id, chunk)
            if not chunk.finished and self._server.must_abort(request_id):
                await self._engine.abort(request_id)  # it was being admitted when it was to be aborted
            if is_first or chunk.finished:
                yield chunk
            is_first = False


def _trim_log_probs(chunk: RequestOutput) -> None:
    """vLLM hands an aborted request's last chunk, when it has no tokens, all earlier log-probs again (`[-0:]`)."""
    for completion in chunk.outputs:
        if completion.logprobs is not None:
            completion.logprobs = completion.logprobs[: len(completion.token_ids)]


class AsyncDAPOServer(vLLMHttpServer):
    """verl's vLLM server with a gate: `stop_generation` interrupts everything, `allow_generation` opens it again.

    An output holds the tokens since the last delivery of the request, its `stop_reason` says whether the request is
    over (`aborted`, `completed`) or still in the engine (`paused`: `reattach` goes on with it). `extra_fields` has
    `segments`, pairs of (policy version, tokens), and the engine's own `finish_reason`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_aborting = False
        self._is_stopped = False
        self._is_paused = asyncio.Event()
        self._idle = asyncio.Event()
        self._requests: dict[str, _Request] = {}
        self.engine: Any = None

    async def run_server(self, args: Any) -> None:
        await super().run_server(args)
        self.engine = StampingEngine(self.engine, self)

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **kwargs: Any
    ) -> TokenOutput:
        if self._is_stopped:
            return _empty(ABORTED, self.global_steps)
        task = asyncio.ensure_future(super().generate(prompt_ids, sampling_params, request_id, **kwargs))
        self._requests[request_id] = _Request(task)
        self._idle.clear()
        task.add_done_callback(lambda _: self._note_end())
        return await self.reattach(request_id)

    async def reattach(self, request_id: str) -> TokenOutput:
        """Wait for a request that is in the engine: for its end, or for the next pause."""
        request = self._requests.get(request_id)
        if request is None:
            return _empty(UNKNOWN, self.global_steps)
        paused = asyncio.ensure_future(self._is_paused.wait())
        try:
            await asyncio.wait({request.finished, paused}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            paused.cancel()
        if not request.finished.done():
            return request.deliver(PAUSED, self.global_steps)
        self._requests.pop(request_id, None)
        try:
            stop_reason = request.finished.result().stop_reason
        except EngineDeadError:
            logger.critical("the engine died, and this server with it: clients try another one")
            exit_actor()
        return request.deliver(stop_reason, self.global_steps)

    async def stop_generation(self, mode: str = "abort") -> int:
        """Interrupt every request and refuse further ones. Returns their number, when the engine is idle.

        Args:
            mode: `abort` ends the requests; `keep` freezes them with their KV cache until `allow_generation`.
        """
        assert mode in PAUSE_MODES, f"mode={mode}: must be one of {PAUSE_MODES}"
        self._is_stopped = True
        running = [request_id for request_id, request in self._requests.items() if not request.finished.done()]
        if mode == "keep":
            await self.engine.pause_generation(mode="keep", clear_cache=False)
            self._is_paused.set()
        elif running:
            self._is_aborting = True
            await self.engine.abort(running)
            await self._idle.wait()
        return len(running)

    async def allow_generation(self) -> None:
        if self._is_paused.is_set():
            self._is_paused.clear()
            await self.engine.resume_generation()
        self._is_aborting = False
        self._is_stopped = False

    async def abort_requests(self, request_ids: list[str], forget: bool = False) -> None:
        """Interrupt some requests; unknown ones are ignored.

        Args:
            forget: nobody will fetch what they have generated.
        """
        known = [request_id for request_id in request_ids if request_id in self._requests]
        for request_id in known:
            self._requests[request_id].is_aborted = True
        await self.engine.abort(known)
        if forget:
            for request_id in known:
                self._requests.pop(request_id, None)

    def must_abort(self, request_id: str) -> bool:
        """Whether this request is unwanted; one that is not known any more was forgotten."""
        request = self._requests.get(request_id)
        return self._is_aborting or request is None or request.is_aborted

    def note_chunk(self, request_id: str, chunk: RequestOutput) -> None:
        request = self._requests.get(request_id)
        if request is None or not chunk.outputs:
            return
        completion = chunk.outputs[0]
        log_probs = [
            position[token].logprob
            for token, position in zip(
                completion.token_ids, completion.logprobs or (), strict=bool(completion.logprobs)
            )
        ]
        request.add(self.global_steps, list(completion.token_ids), log_probs)
        request.finish_reason = completion.finish_reason

    def _note_end(self) -> None:
        if all(request.finished.done() for request in self._requests.values()):
            self._idle.set()


def _empty(stop_reason: str, version: int | None) -> TokenOutput:
    return TokenOutput(
        token_ids=[],
        log_probs=[],
        stop_reason=stop_reason,
        extra_fields={"global_steps": version, "segments": [], "finish_reason": None},
    )


class AsyncDAPOReplica(vLLMReplica):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(AsyncDAPOServer)


def _load_replica() -> type[RolloutReplica]:
    return AsyncDAPOReplica


def register_replica() -> None:
    """Make verl launch our servers; the name stays `vllm`, which verl's weight transfer looks actors up by."""
    RolloutReplicaRegistry.register("vllm", _load_replica)
