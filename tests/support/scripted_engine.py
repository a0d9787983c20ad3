"""vLLM without a model: its real output processor, fed with scripted tokens on virtual time."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.outputs import LogprobsLists

from recipe.async_dapo.engines.server import AsyncDAPOServer
from recipe.async_dapo.weights.stream import CUSTOM_OPTIONS

from .fakes import log_prob_of, token_at
from .simulation import REMOTE


def admit(
    processor: OutputProcessor, request_id: str, prompt_ids: list[int], params: SamplingParams, cache_salt: str | None
) -> tuple[str, RequestOutputCollector]:
    """Give a request to vLLM's own output processor, as `AsyncLLM` does: the name that the engine core knows it by, and
    the queue of its chunks.
    """
    queue = RequestOutputCollector(params.output_kind, request_id)
    request = EngineCoreRequest(
        request_id=f"{request_id}-internal",
        external_req_id=request_id,
        prompt_token_ids=prompt_ids,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=cache_salt,
        data_parallel_rank=None,
    )
    processor.add_request(request, None, queue=queue)
    return request.request_id, queue


async def chunks_of(queue: RequestOutputCollector) -> AsyncIterator[RequestOutput]:
    """All chunks of a request, to the last one."""
    finished = False
    while not finished:
        chunk = queue.get_nowait() or await queue.get()
        finished = chunk.finished
        yield chunk


@dataclass
class _Decoding:
    """A request in the engine core."""

    prompt_ids: list[int]
    max_tokens: int
    cache_salt: str
    num_tokens: int = 0


S = TypeVar("S", bound=AsyncDAPOServer)


class ScriptedEngine:
    """`AsyncLLM` as far as the recipe uses it. One token per request every `token_s`; all requests are in one batch.

    Args:
        length_tok: response length [tokens].
        token_s: time per token [s].
        admission_s: time between `generate` and the moment the engine knows the request [s].
        stream_interval: tokens handed to the front end at a time [tokens].
    """

    def __init__(
        self, length_tok: int, *, token_s: float = 1.0, admission_s: float = 0.25, stream_interval: int = 1
    ) -> None:
        self.output_processor = OutputProcessor(None, log_stats=False, stream_interval=stream_interval)
        self.core: dict[str, _Decoding] = {}
        self.sampled: dict[str, list[int]] = {}
        self.salts: list[str] = []
        self.policy_version = 0
        self.is_dead = False
        self._length_tok = length_tok
        self._token_s = token_s
        self._admission_s = admission_s
        self._is_running = asyncio.Event()
        self._is_running.set()
        self._decode_loop: asyncio.Task[None] | None = None

    async def generate(
        self, *, prompt: dict[str, Any], sampling_params: SamplingParams, request_id: str, **kwargs: Any
    ) -> AsyncIterator[RequestOutput]:
        await asyncio.sleep(self._admission_s)
        self._check_alive()
        prompt_ids, salt = prompt["prompt_token_ids"], prompt["cache_salt"]
        name, queue = admit(self.output_processor, request_id, prompt_ids, sampling_params, salt)
        self.core[name] = _Decoding(prompt_ids, sampling_params.max_tokens, salt)
        self.sampled[request_id] = []
        self.salts.append(salt)
        if self._decode_loop is None:
            self._decode_loop = asyncio.create_task(self._decode(), name=f"{REMOTE} engine core")
        async for chunk in chunks_of(queue):
            yield chunk

    async def is_sleeping(self) -> bool:
        self._check_alive()
        return False

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        request_ids = [request_id] if isinstance(request_id, str) else list(request_id)
        for aborted in self.output_processor.abort_requests(request_ids, internal):
            self.core.pop(aborted, None)

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        assert mode == "keep" and not clear_cache
        self._check_alive()
        self._is_running.clear()

    async def resume_generation(self) -> None:
        self._check_alive()
        self._is_running.set()

    def die(self) -> None:
        """What `AsyncLLM` does when the engine core is gone."""
        self.is_dead = True
        self.output_processor.propagate_error(EngineDeadError())

    def _check_alive(self) -> None:
        if self.is_dead:
            raise EngineDeadError()

    async def _decode(self) -> None:
        while self.core and not self.is_dead:
            await asyncio.sleep(self._token_s)
            await self._is_running.wait()
            self.output_processor.process_outputs([self._step(name, request) for name, request in self.core.items()])
            for name in [name for name in self.core if name not in self.output_processor.request_states]:
                del self.core[name]
        self._decode_loop = None

    def _step(self, name: str, request: _Decoding) -> EngineCoreOutput:
        position = len(request.prompt_ids) - 1 + request.num_tokens
        token = token_at(request.prompt_ids[:1], position)
        request.num_tokens += 1
        self.sampled[name.removesuffix("-internal")].append(token)
        finish_reason = None
        if position + 1 >= self._length_tok:
            finish_reason = FinishReason.STOP
        elif request.num_tokens >= request.max_tokens:
            finish_reason = FinishReason.LENGTH
        return EngineCoreOutput(
            request_id=name,
            new_token_ids=[token],
            new_logprobs=LogprobsLists(np.array([[token]]), np.array([[log_prob_of(token)]]), np.array([0])),
            finish_reason=finish_reason,
            routed_experts=np.array(
                [[[place]] for place in range(position + 1)[-1 if request.num_tokens > 1 else 0 :]]
            ),
        )


def start_server(
    monkeypatch: pytest.MonkeyPatch,
    engine: ScriptedEngine,
    server_class: type[S] = AsyncDAPOServer,  # type: ignore[assignment]
    *,
    delivery_tok: int = 1_000_000,
) -> S:
    """Our server, verl's code included, on a scripted engine."""

    def init(self: vLLMHttpServer) -> None:
        self.config = SimpleNamespace(
            max_model_len=1000,
            prompt_length=1,
            response_length=500,
            full_determinism=False,
            enable_rollout_routing_replay=isinstance(engine, ScriptedEngine),  # vLLM gives them of experts alone
            mtp=None,
            custom={CUSTOM_OPTIONS: {"delivery_tok": delivery_tok, "engine_timeout_s": 120.0}},
            get=lambda key, default: default,
        )
        self.model_config = SimpleNamespace(processor=None, lora_rank=0, lora={})
        self.global_steps = 0
        self.replica_rank = self.node_rank = 0
        self._disaggregation_role = "null"
        self._submission_paused, self._admitting = False, 0

    monkeypatch.setattr(vLLMHttpServer, "__init__", init)
    server = server_class()
    server.stamp(engine)
    return server
