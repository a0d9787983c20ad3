"""A scripted engine server, for virtual time and, as `ray.remote(ScriptedServer)`, for real Ray. Imports no verl."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from recipe.async_dapo.core.concurrency import EngineLoad

from .simulation import REMOTE


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedOutput:
    """verl's `TokenOutput`, as far as it is read."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: str
    extra_fields: dict[str, Any]
    num_preempted: int | None = None


@dataclass(slots=True)
class ScriptedRequest:
    """A request on a scripted server: what it was asked, what it has generated, and what of it was delivered."""

    prompt_ids: list[int]
    max_tokens: int
    length_tok: int
    logprobs: bool = True
    token_ids: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)  # policy version of each token
    delivered_tok: int = 0
    finish_reason: str | None = None
    is_forgotten: bool = False  # nobody will fetch it
    has_piece: asyncio.Event = field(default_factory=asyncio.Event)
    aborted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    decoding: asyncio.Task[None] | None = None


class ScriptedServer:
    """`AsyncDAPOServer`'s protocol without an engine: every request makes a token every `token_s`.

    Token k of a response to a prompt is `token_at(prompt_ids, k)`, whatever server, attempt and segment it comes from,
    so that a test can tell a response that was put together wrongly. Its log-prob is `-token / 1000`.

    Args:
        length_of: response length of a prompt [tokens], by the prompt without what was generated before.
        token_s: time per token [s].
        prompt_len_tok: length of all prompts: what follows is a response to be continued [tokens].
        delivery_tok: tokens that are worth a delivery; None = only at the end [tokens].
        hangs: whether aborts are ignored, and the engine never goes to sleep.
        routes: whether to tell of experts: of each token, its position and the policy version that has read it.
    """

    def __init__(
        self,
        length_of: Callable[[list[int]], int] | int = 8,
        *,
        token_s: float = 1.0,
        prompt_len_tok: int = 1,
        delivery_tok: int | None = None,
        hangs: bool = False,
        routes: bool = False,
    ) -> None:
        self._length_of = length_of
        self.token_s = token_s
        self._prompt_len_tok = prompt_len_tok
        self._delivery_tok = delivery_tok
        self.hangs, self._routes = hangs, routes
        self.global_steps = 0
        self.is_stopped = False
        self.running: dict[str, ScriptedRequest] = {}  # in the engine, held or not
        self.ended: dict[str, ScriptedRequest] = {}  # not fetched yet
        self.aborted_before: set[str] = set()  # before they arrived
        self.generated: dict[str, list[int]] = {}  # request -> tokens, of every request that has ended
        self.max_running = 0
        self.generated_tok = 0  # since generation was allowed
        self.kv_room_tok, self.max_num_seqs = 4096, 256
        self._decodes = asyncio.Event()
        self._decodes.set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **kwargs: Any
    ) -> ScriptedOutput:
        assert request_id not in self.running and request_id not in self.generated, "a request id was used twice"
        if self.is_stopped or request_id in self.aborted_before:
            return self._output(ScriptedRequest(prompt_ids, 0, 0), "aborted")
        request = self._admit(prompt_ids, sampling_params)
        self.running[request_id] = request
        self.max_running = max(self.max_running, len(self.running))
        self._idle.clear()
        request.decoding = asyncio.create_task(self._decode(request_id, request), name=f"{REMOTE} decode")
        return await self.reattach(request_id)

    async def reattach(self, request_id: str) -> ScriptedOutput:
        request = self.running.get(request_id) or self.ended.get(request_id)
        if request is None:
            return self._output(ScriptedRequest([], 0, 0), "unknown")
        assert request.decoding is not None
        piece = asyncio.create_task(request.has_piece.wait(), name=f"{REMOTE} piece")
        await asyncio.wait([request.decoding, piece], return_when=asyncio.FIRST_COMPLETED)
        piece.cancel()
        if not request.decoding.done():
            return self._output(request, "more")
        self.ended.pop(request_id, None)
        return self._output(request, "aborted" if request.finish_reason == "abort" else "completed")

    async def stop_generation(self, mode: str = "abort") -> EngineLoad:
        self.is_stopped = True
        stopped = list(self.running)
        if mode == "hold":
            self._decodes.clear()
            await self.abort_requests([key for key in stopped if not self.running[key].token_ids])
        else:
            await self.abort_requests(stopped)
            await self._idle.wait()
        return self.load

    async def allow_generation(self) -> EngineLoad:
        self.generated_tok = 0
        return await self.go_on()

    async def go_on(self) -> EngineLoad:
        self.is_stopped = False
        self._decodes.set()
        return self.load

    async def turn_over(self) -> EngineLoad:
        load = self.load
        self.generated_tok = 0
        return load

    @property
    def generates(self) -> bool:
        """Whether a token may come."""
        return not self.is_stopped or (bool(self.running) and self._decodes.is_set())

    @property
    def load(self) -> EngineLoad:
        """Of an engine without KV cache to speak of."""
        return EngineLoad(
            kv_room_tok=self.kv_room_tok,
            max_num_seqs=self.max_num_seqs,
            generated_tok=self.generated_tok,
            kv_tok_s=float(self.generated_tok),
            request_s=self.generated_tok * self.token_s,
        )

    async def abort_requests(self, request_ids: list[str], forget: bool = False) -> None:
        for request_id in request_ids:
            if forget and (request := self.running.get(request_id) or self.ended.pop(request_id, None)):
                request.is_forgotten = True
            if request_id not in self.running:
                self.aborted_before.add(request_id)
            elif not self.hangs and not (aborted := self.running[request_id].aborted).done():
                aborted.set_result(None)

    async def wait_for_requests_to_drain(self) -> None: ...

    async def sleep(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()

    async def ping(self) -> None:
        """Answers while the process does."""

    async def until_death(self) -> None:
        await asyncio.Event().wait()

    async def set_global_steps(self, global_steps: int) -> None:
        self.global_steps = global_steps

    async def num_running(self) -> int:
        return len(self.running)

    def _admit(self, prompt_ids: list[int], sampling_params: dict[str, Any]) -> ScriptedRequest:
        prompt, generated = prompt_ids[: self._prompt_len_tok], prompt_ids[self._prompt_len_tok :]
        whole_tok = self._length_of if isinstance(self._length_of, int) else self._length_of(prompt)
        logprobs = bool(sampling_params.get("logprobs"))
        return ScriptedRequest(prompt_ids, sampling_params["max_tokens"], max(1, whole_tok - len(generated)), logprobs)

    async def _decode(self, request_id: str, request: ScriptedRequest) -> None:
        """Generate to the end, in vLLM's words."""
        finish_reason = "stop" if request.length_tok <= request.max_tokens else "length"
        while len(request.token_ids) < min(request.length_tok, request.max_tokens):
            await asyncio.wait([request.aborted], timeout=self.token_s)
            if not self._decodes.is_set():
                decodes = asyncio.create_task(self._decodes.wait(), name=f"{REMOTE} wait")
                await asyncio.wait([decodes, request.aborted], return_when=asyncio.FIRST_COMPLETED)
                decodes.cancel()
            if request.aborted.done():
                finish_reason = "abort"
                break
            request.token_ids.append(self._next_token(request))
            request.stamps.append(self.global_steps)
            if len(request.token_ids) - request.delivered_tok == self._delivery_tok:
                request.has_piece.set()
            self.generated_tok += 1
        request.finish_reason = finish_reason
        self.generated[request_id] = request.token_ids
        del self.running[request_id]
        if not request.is_forgotten:
            self.ended[request_id] = request
        if not self.running:
            self._idle.set()

    def _next_token(self, request: ScriptedRequest) -> int:
        position = len(request.prompt_ids) - self._prompt_len_tok + len(request.token_ids)
        return token_at(request.prompt_ids[: self._prompt_len_tok], position)

    def _output(self, request: ScriptedRequest, stop_reason: str) -> ScriptedOutput:
        """Everything since the last delivery."""
        token_ids = request.token_ids[request.delivered_tok :]
        stamps = request.stamps[request.delivered_tok :]
        routes = {"routes": _routes(request)} if self._routes and token_ids else {}
        request.delivered_tok = len(request.token_ids)
        request.has_piece.clear()
        return ScriptedOutput(
            token_ids=token_ids,
            log_probs=[log_prob_of(token) for token in token_ids] if request.logprobs else None,
            stop_reason=stop_reason,
            extra_fields={
                "segments": [(version, len(list(same))) for version, same in groupby(stamps)],
                "finish_reason": request.finish_reason,
                "load": self.load,
                **routes,
            },
        )


def _routes(request: ScriptedRequest) -> tuple[int, np.ndarray]:
    """Those since the last delivery."""
    before_tok = len(request.prompt_ids) - 1  # the last one is read when the first token is sampled
    versions = [*request.stamps[:1] * before_tok, *request.stamps]
    start = before_tok + request.delivered_tok if request.delivered_tok else 0
    return start, np.array([[entry] for entry in enumerate(versions)], np.uint8)[start:]


def token_at(prompt_ids: list[int], position: int) -> int:
    return 1000 * (sum(prompt_ids) % 97) + position


def log_prob_of(token: int) -> float:
    return -token / 1000
