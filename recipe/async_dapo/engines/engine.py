"""vLLM's engine with a record of its requests: what they have generated, and under which policy version."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl.workers.rollout.replica import TokenOutput
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

from ..core.concurrency import EngineLoad
from ..core.leases import RecentDict
from .adapters import Adapters
from .protocol import OutputExtra, make_output
from .routes import RequestRoutes


@dataclass(slots=True)
class RunningRequest:
    """A request in the engine, and what of its output has not been delivered yet.

    Args:
        piece_tok: so many tokens are worth a delivery [tokens].
        began: it may go on with keys and values of this policy version; None: with those of its engine's only.
    """

    request_id: str
    finished: asyncio.Task[TokenOutput]
    piece_tok: int
    began: int | None = None
    has_piece: asyncio.Event = field(default_factory=asyncio.Event)
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    segments: list[tuple[int, int]] = field(default_factory=list)  # (policy version, tokens)
    finish_reason: str | None = None
    is_aborted: bool = False
    has_begun: bool = False  # it has generated
    routes: RequestRoutes | None = None  # with router replay, once the engine knows the request

    def add(self, version: int, token_ids: list[int], log_probs: list[float]) -> None:
        if not token_ids:
            return
        self.has_begun = True
        self.token_ids += token_ids
        self.log_probs += log_probs
        if self.segments and self.segments[-1][0] == version:
            self.segments[-1] = (version, self.segments[-1][1] + len(token_ids))
        else:
            self.segments.append((version, len(token_ids)))
        if len(self.token_ids) >= self.piece_tok:
            self.has_piece.set()

    def deliver(self, stop_reason: str | None, load: EngineLoad | None, *, counts: Mapping[str, int]) -> TokenOutput:
        """Everything since the last delivery."""
        extra = OutputExtra(segments=self.segments, finish_reason=self.finish_reason, load=load)
        if self.routes is not None and self.token_ids:
            extra["routes"] = self.routes.take(len(self.token_ids))
        output = make_output(self.token_ids, self.log_probs, stop_reason=stop_reason, extra=extra, counts=counts)
        self.token_ids, self.log_probs, self.segments = [], [], []
        self.has_piece.clear()
        return output


class RequestTable:
    """The requests of one server."""

    def __init__(self) -> None:
        self.is_aborting = False  # everything that is admitted is unwanted
        self.chunks = 0  # that the engine has yielded
        self._requests: dict[str, RunningRequest] = {}
        self._aborted_before = RecentDict[str, None]()

    def add(self, request: RunningRequest) -> None:
        self._requests[request.request_id] = request

    def get(self, request_id: str) -> RunningRequest | None:
        return self._requests.get(request_id)

    def began(self, request_id: str) -> int | None:
        request = self._requests.get(request_id)
        return None if request is None else request.began

    def set_routes(self, request_id: str, routes: RequestRoutes) -> None:
        if request_id in self._requests:
            self._requests[request_id].routes = routes

    def remove(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def running(self) -> list[RunningRequest]:
        return [request for request in self._requests.values() if not request.finished.done()]

    def mark_aborted(self, request_ids: Iterable[str]) -> list[str]:
        """Returns those that are known; the others are remembered, as their aborts may have overtaken them."""
        known = []
        for request_id in request_ids:
            if request_id in self._requests:
                self._requests[request_id].is_aborted = True
                known.append(request_id)
            else:
                self._aborted_before[request_id] = None
        return known

    def was_aborted_before(self, request_id: str) -> bool:
        """Whether the abort of a request arrived before the request: Ray starts calls in any order."""
        return request_id in self._aborted_before

    def must_abort(self, request_id: str) -> bool:
        """Whether a request is unwanted; one that is not known any more was forgotten."""
        request = self._requests.get(request_id)
        return self.is_aborting or request is None or request.is_aborted

    def take_chunk(self, request_id: str, chunk: RequestOutput, version: int) -> None:
        """Move the tokens of a chunk, if they are still wanted, into the record of its request."""
        self.chunks += 1
        request = self._requests.get(request_id)
        for completion in chunk.outputs:
            if request is not None:
                request.add(version, list(completion.token_ids), _sampled_log_probs(completion))
                request.finish_reason = completion.finish_reason
            completion.token_ids, completion.logprobs = [], []


class StampingEngine:
    """vLLM's engine, whose `generate` yields a request's first chunk and its last one, both without tokens.

    The output is read in increments, so that the front end's work per token does not grow with the length of the
    response, and as mere numbers: no text, unless a stop string is looked for, and no object per token. Every
    increment is recorded with the policy version under which it arrived. Prompts are salted with that version, so that
    no request meets prefix-cache entries of older weights; or with the one that began the trajectory, if it may meet
    its own.

    Args:
        policy_version: what the engine's weights are now.
    """

    def __init__(self, engine: Any, requests: RequestTable, policy_version: Callable[[], int]) -> None:
        self._engine = engine
        self._requests = requests
        self._policy_version = policy_version
        self.list_loras = Adapters(engine, policy_version).in_engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, *, prompt: dict[str, Any], sampling_params: SamplingParams, request_id: str, **kwargs: Any
    ) -> AsyncIterator[RequestOutput]:
        sampling_params.output_kind = RequestOutputKind.DELTA
        sampling_params.detokenize = bool(sampling_params.stop)
        sampling_params.flat_logprobs = True
        began = self._requests.began(request_id)
        salted = {**prompt, "cache_salt": f"policy-{self._policy_version() if began is None else began}"}
        stream = self._engine.generate(prompt=salted, sampling_params=sampling_params, request_id=request_id, **kwargs)
        is_first = True
        async for chunk in stream:
            self._requests.take_chunk(request_id, chunk, self._policy_version())
            if not chunk.finished and self._requests.must_abort(request_id):
                await self._engine.abort(request_id)  # it was being admitted when it was to be aborted
            if is_first or chunk.finished:
                yield chunk
            is_first = False


def _sampled_log_probs(completion: CompletionOutput) -> list[float]:
    """The log-prob of each token, first of its position; none if they were not asked for.

    An aborted request's last chunk, when it has no tokens, repeats all earlier log-probs: they are left out.
    """
    flat = completion.logprobs
    return [flat.logprobs[start] for start in flat.start_indices[: len(completion.token_ids)]] if flat else []
