"""An engine that takes a GPU's time without doing its work: the planner's server model on a compressed wall clock.

It has the calls of vLLM's `AsyncLLM` that verl's server and this recipe's use. One timer stands for the next change of
the batch, none for a token: a request's tokens are written out when it ends or is interrupted.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf
from types import SimpleNamespace
from typing import Any

from vllm.logprobs import FlatLogprobs, Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

from ..plan.engine import Engine, Request
from .answers import Answer, AnswerBook
from .options import CompressedClock

LOG_PROB = -1.0  # of every token, in the engines and in the trainer [nats]


@dataclass(slots=True, eq=False)
class _Running:
    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    answer: Answer
    done_tok: int  # of the answer, before this request
    request: Request = field(init=False)
    outputs: asyncio.Queue[RequestOutput] = field(default_factory=asyncio.Queue)
    is_over: bool = False

    def hand_out(self, token_ids: list[int], finish_reason: str | None) -> None:
        self.outputs.put_nowait(_output_of(self.request_id, self.prompt_ids, self.params, token_ids, finish_reason))


class EmulatedEngine:
    """Takes the place of vLLM's `AsyncLLM`: answers every request from a book, at the modelled times of a compressed
    clock.

    Args:
        model: how long things take, in virtual time.
        book: what the requests are answered with.
    """

    def __init__(self, model: Engine, book: AnswerBook, clock: CompressedClock) -> None:
        self.model = model
        self._book = book
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._unadmitted: set[_Running] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._lateness_s: list[float] = []
        self.output_processor = SimpleNamespace(request_states=self._running)  # verl counts its keys

    def take_lateness(self) -> list[float]:
        """How late every change of the batch since the last call was noticed [virtual s]."""
        taken, self._lateness_s = self._lateness_s, []
        return taken

    async def generate(
        self, *, prompt: dict[str, Any], sampling_params: SamplingParams, request_id: str, **_: Any
    ) -> AsyncIterator[RequestOutput]:
        """An empty chunk when the request is admitted to the batch, further ones when it is interrupted or ends."""
        prompt_ids = list(prompt["prompt_token_ids"])
        answer, done_tok = self._book.take(prompt_ids)
        left_tok = answer.length_tok - done_tok
        running = _Running(request_id, prompt_ids, sampling_params, answer, done_tok)
        running.request = Request(
            owner=running,
            context_tok=len(prompt_ids),
            remaining_tok=min(left_tok, sampling_params.max_tokens or left_tok),
            prefill_tok=len(prompt_ids),
        )
        self._running[request_id] = running
        self._unadmitted.add(running)
        self.model.submit(running.request, self._clock.now_s())
        self._arm()
        try:
            while True:
                output = await running.outputs.get()
                yield output
                if output.finished:
                    return
        finally:
            if not running.is_over:  # its answer is not awaited any more
                self._cancel(running)

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """End requests with the tokens they have; unknown ones are ignored."""
        names = {request_id} if isinstance(request_id, str) else set(request_id)
        if names >= self._running.keys():
            self._abort_all()
        else:
            for running in [self._running[name] for name in names & self._running.keys()]:
                self._cancel(running)

    async def sleep(self, level: int = 1) -> None:
        if self._running:
            raise RuntimeError(f"put to sleep with {len(self._running)} requests in the engine")

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """The seconds that it takes are those of the weight update."""

    async def is_sleeping(self) -> None: ...

    async def reset_prefix_cache(self, *_: Any, **__: Any) -> bool:
        return True

    async def reset_mm_cache(self) -> None: ...

    async def reset_encoder_cache(self) -> None: ...

    async def wait_for_requests_to_drain(self, *_: Any) -> None:
        """verl waits for engines with data parallelism only."""

    async def list_loras(self) -> list[int]:
        return []

    # ---- time ----

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.model.next_boundary_s < inf:
            delay_s = self._clock.real_until(self.model.next_boundary_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._run_boundaries)

    def _run_boundaries(self) -> None:
        self._timer = None
        while (due_s := self.model.next_boundary_s) <= (now_s := self._clock.now_s()):
            self._lateness_s.append(now_s - due_s)
            for request in self.model.run_boundary():
                self._end(request.owner, is_aborted=request.remaining_tok > 0)
        self._after_change()

    def _after_change(self) -> None:
        for running in [one for one in self._unadmitted if one.request.due_step]:
            self._admit(running)
        self._arm()

    # ---- requests ----

    def _admit(self, running: _Running) -> None:
        running.hand_out([], None)
        self._unadmitted.discard(running)

    def _abort_all(self) -> None:
        for request in self.model.abort(self._clock.now_s()):
            self._end(request.owner, is_aborted=request.remaining_tok > 0)
        self._arm()

    def _cancel(self, running: _Running) -> None:
        if self.model.cancel(running.request, self._clock.now_s()):
            self._end(running, is_aborted=running.request.remaining_tok > 0)
        self._arm()

    def _end(self, running: _Running, *, is_aborted: bool) -> None:
        running.is_over = True
        self._running.pop(running.request_id, None)
        self._unadmitted.discard(running)
        answer, done_tok = running.answer, running.done_tok + running.request.generated_tok
        if done_tok < answer.length_tok:
            self._book.put_back(running.prompt_ids + answer.tokens(running.done_tok, done_tok), answer, done_tok)
        is_whole = done_tok == answer.length_tok and not answer.is_cut
        self._hand_out(running, finish_reason="abort" if is_aborted else "stop" if is_whole else "length")

    def _hand_out(self, running: _Running, *, finish_reason: str | None) -> None:
        """The tokens since the last time, or all of them, as the request wants it."""
        new_tok = running.request.deliver()
        stop = running.done_tok + running.request.generated_tok
        start = stop - new_tok if running.params.output_kind is RequestOutputKind.DELTA else running.done_tok
        running.hand_out(running.answer.tokens(start, stop), finish_reason)


def _output_of(
    request_id: str, prompt_ids: list[int], params: SamplingParams, token_ids: list[int], finish_reason: str | None
) -> RequestOutput:
    """A chunk of an answer, as vLLM's engine hands it out; `finish_reason` is None while it goes on."""
    log_probs: Any = None
    if params.logprobs is not None:
        log_probs = _flat(token_ids) if params.flat_logprobs else [_certain(token) for token in token_ids]
    completion = CompletionOutput(
        index=0,
        text="",
        token_ids=token_ids,
        cumulative_logprob=None,
        logprobs=log_probs,
        finish_reason=finish_reason,
    )
    return RequestOutput(
        request_id=request_id,
        prompt=None,
        prompt_token_ids=prompt_ids,
        prompt_logprobs=None,
        outputs=[completion],
        finished=finish_reason is not None,
    )


def _flat(token_ids: list[int]) -> FlatLogprobs:
    count = len(token_ids)
    return FlatLogprobs(
        start_indices=list(range(count)),
        end_indices=list(range(1, count + 1)),
        token_ids=token_ids,
        logprobs=[LOG_PROB] * count,
        ranks=[1] * count,
        decoded_tokens=[None] * count,
    )


@cache
def _certain(token_id: int) -> dict[int, Logprob]:
    return {token_id: Logprob(logprob=LOG_PROB, rank=1)}
