"""A vLLM server that can be stopped at once and that says which policy version sampled each token."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

ABORTED = "aborted"  # verl's stop reason of an interrupted request


class StampingEngine:
    """vLLM's engine, whose `generate` yields a request's first chunk and then its whole output once.

    It reads the engine's output in increments, so that the front end's work per token does not grow with the length of
    the response, and notes the policy version at which every increment arrived.
    """

    def __init__(self, engine: Any, server: "AsyncDAPOServer") -> None:
        self._engine = engine
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, *, sampling_params: SamplingParams, request_id: str, **kwargs: Any
    ) -> AsyncIterator[RequestOutput]:
        sampling_params.output_kind = RequestOutputKind.DELTA
        token_ids: list[int] = []
        log_probs: list[Any] = []
        stamps: list[tuple[int, int]] = []  # (policy version, tokens)
        chunk = None
        async for chunk in self._engine.generate(
            sampling_params=sampling_params, request_id=request_id, **kwargs
        ):
            if chunk.outputs:
                completion = chunk.outputs[0]
                _stamp(stamps, self._server.global_steps, len(completion.token_ids))
                token_ids.extend(completion.token_ids)
                log_probs.extend(completion.logprobs or ())
            if self._server.is_stopped and not chunk.finished:
                await self._engine.abort(request_id)  # it was being admitted when the others were aborted
            if not chunk.finished:
                yield chunk
        assert chunk is not None, "the engine ended a request without an output"
        if chunk.outputs:
            completion = chunk.outputs[0]
            completion.token_ids = token_ids
            completion.logprobs = log_probs or None
            self._server.note_finish(request_id, stamps, completion.finish_reason)
        yield chunk


def _stamp(stamps: list[tuple[int, int]], version: int, num_tokens: int) -> None:
    if num_tokens == 0:
        return
    if stamps and stamps[-1][0] == version:
        stamps[-1] = (version, stamps[-1][1] + num_tokens)
    else:
        stamps.append((version, num_tokens))


class AsyncDAPOServer(vLLMHttpServer):
    """verl's vLLM server with a gate: `stop_generation` aborts everything, `allow_generation` opens it again.

    An interrupted request returns what it has generated, with `stop_reason="aborted"`. Every output carries
    `extra_fields["segments"]`, pairs of (policy version, tokens), and the engine's own `finish_reason`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_stopped = False
        self._active: set[str] = set()
        self._idle = asyncio.Event()
        self._finished: dict[str, tuple[list[tuple[int, int]], str | None]] = {}

    async def run_server(self, args: Any) -> None:
        await super().run_server(args)
        self.engine = StampingEngine(self.engine, self)

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **kwargs: Any
    ) -> TokenOutput:
        if self.is_stopped:
            return TokenOutput(
                token_ids=[],
                log_probs=[],
                stop_reason=ABORTED,
                extra_fields={"global_steps": self.global_steps, "segments": [], "finish_reason": "abort"},
            )
        self._active.add(request_id)
        self._idle.clear()
        try:
            output = await super().generate(prompt_ids, sampling_params, request_id, **kwargs)
            segments, finish_reason = self._finished.get(request_id, ([], None))
            output.extra_fields["segments"] = segments
            output.extra_fields["finish_reason"] = finish_reason
            return output
        finally:
            self._finished.pop(request_id, None)
            self._active.discard(request_id)
            if not self._active:
                self._idle.set()

    def note_finish(self, request_id: str, stamps: list[tuple[int, int]], finish_reason: str | None) -> None:
        self._finished[request_id] = (stamps, finish_reason)

    async def stop_generation(self) -> int:
        """Abort every request and refuse further ones. Returns their number, when the engine is idle."""
        self.is_stopped = True
        aborted = list(self._active)
        if aborted:
            await self.engine.abort(aborted)
            await self._idle.wait()
        return len(aborted)

    async def abort_requests(self, request_ids: list[str]) -> None:
        """Interrupt some requests; unknown ones are ignored."""
        await self.engine.abort([request_id for request_id in request_ids if request_id in self._active])

    async def allow_generation(self) -> None:
        self.is_stopped = False


class AsyncDAPOReplica(vLLMReplica):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(AsyncDAPOServer)


def _load_replica() -> type[RolloutReplica]:
    return AsyncDAPOReplica


def register_replica() -> None:
    """Make verl launch our servers; the name stays `vllm`, which verl's weight transfer looks actors up by."""
    RolloutReplicaRegistry.register("vllm", _load_replica)
