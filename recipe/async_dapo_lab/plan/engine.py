"""One inference server with continuous batching, in closed form between events.

All running requests get one token per step, so the server needs no event per token: it counts steps, a request is due
when the count reaches its number, and the time of a stretch of steps is a parabola (`StepCost.decode_s`). A stretch
ends when a request is due, when the KV cache is full, or when a newcomer can be admitted; then the batch changes:

    due requests leave -> the last admitted are preempted while the cache is too full -> waiting ones are admitted

Pure state machine: time arrives as `now_s`, `next_boundary_s` says when the batch changes next.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from math import inf
from typing import Any

from ...async_dapo.core.concurrency import EngineLoad
from .costs import StepCost


@dataclass(slots=True)
class EngineCounters:
    """What a server has done since it was made; can be added up and subtracted."""

    generated_tok: int = 0
    prefilled_tok: int = 0
    recomputed_tok: int = 0  # of these: after a preemption
    preemptions: int = 0
    busy_s: float = 0.0  # with at least one running request
    prefill_s: float = 0.0  # of these: computing contexts
    request_s: float = 0.0  # sum over running requests
    kv_tok_s: float = 0.0  # tokens in the cache, integrated over time

    def __add__(self, other: "EngineCounters") -> "EngineCounters":
        return EngineCounters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: "EngineCounters") -> "EngineCounters":
        return EngineCounters(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def in_measure(self) -> dict[str, Any]:
        """What a `StepMeasure` takes of it."""
        taken = ("generated_tok", "prefilled_tok", "recomputed_tok", "preemptions", "prefill_s")
        return {name: getattr(self, name) for name in taken} | {"server_busy_s": self.busy_s}


@dataclass(slots=True, kw_only=True)
class Request:
    """A trajectory in a server. `owner` is the caller's, never looked into here."""

    owner: Any
    context_tok: int  # prompt and what has been generated, before admission
    remaining_tok: int
    prefill_tok: int  # of the context, to be computed on admission
    is_recompute: bool = False  # preempted: its context was computed before
    generated_tok: int = 0  # in this server, over preemptions
    delivered_tok: int = 0  # of these: handed to the owner
    order: int = 0  # of admission
    start_step: int = 0
    due_step: int = 0

    def deliver(self) -> int:
        """The number of tokens since the last delivery."""
        new_tok, self.delivered_tok = self.generated_tok - self.delivered_tok, self.generated_tok
        return new_tok

    def note_tokens(self, step: int) -> None:
        """It has got a token by each of the server's steps up to this one."""
        new_tok = step - self.start_step
        self.start_step = step
        self.generated_tok += new_tok
        self.context_tok += new_tok
        self.remaining_tok -= new_tok

    def is_running(self, order: int) -> bool:
        """Whether what was planned for its admission of this order still holds."""
        return self.due_step > 0 and self.order == order


class Engine:
    """A modelled vLLM engine: continuous batching, KV cache, preemption and prefill, advanced from change to change of
    its batch.

    Args:
        cost: seconds of a step and of a prefill, and the room of the KV cache.
        max_num_seqs: requests that run at once [requests, >= 1].

    Attributes:
        more_of: of a request that has got its tokens: how many more it goes on with; none by default.
    """

    def __init__(self, cost: StepCost, *, max_num_seqs: int) -> None:
        self._cost = cost
        self._max_num_seqs = max_num_seqs
        self._waiting: deque[Request] = deque()
        self._due: list[tuple[int, int, Request]] = []  # heap of (due step, order, request)
        self._admitted: list[Request] = []  # in order of admission; those that left linger at the end
        self.num_running = 0
        self._step = 0  # at the start of this stretch
        self.kv_tok = 0  # in the cache at the start of this stretch
        self._stretch_s = 0.0  # start of this stretch
        self._prefill_s = 0.0  # part of its first step
        self._boundary = 0  # steps of this stretch until the batch changes
        self._orders = 0
        self.next_boundary_s = inf
        self.counters = EngineCounters()
        self.kv_peak_tok = 0  # since it was resumed
        self._at_resume = EngineCounters()
        self.more_of: Callable[[Request], int] = lambda _: 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def _in_batch(self) -> list[Request]:
        return [request for request in self._admitted if request.due_step]

    @property
    def load(self) -> EngineLoad:
        """What a vLLM server says of itself; each request that ends asks for it."""
        now, before, room_tok = self.counters, self._at_resume, self._cost.kv_room_tok
        return EngineLoad(
            kv_room_tok=room_tok,
            max_num_seqs=self._max_num_seqs,
            kv_peak=max(self.kv_peak_tok, self.kv_tok) / room_tok,
            kv_tok_s=now.kv_tok_s - before.kv_tok_s,
            preemptions=now.preemptions - before.preemptions,
            generated_tok=now.generated_tok - before.generated_tok,
            request_s=now.request_s - before.request_s,
        )

    def forget_load(self) -> None:
        """Count what it says of itself from now on."""
        self.kv_peak_tok, self._at_resume = self.kv_tok, self.counters + EngineCounters()

    def submit(self, request: Request, now_s: float) -> None:
        """Queue a request. It is admitted at the first step boundary from now on that has room for it."""
        self._waiting.append(request)
        if len(self._waiting) == 1 and self.num_running < self._max_num_seqs:
            self._interrupt(now_s)

    def run_boundary(self) -> list[Request]:
        """Change the batch at `next_boundary_s`. Returns the requests that leave, ended or cancelled."""
        self._advance(self._boundary)
        finished = []
        while self._due and self._due[0][0] <= self._step:
            _, order, request = heapq.heappop(self._due)
            if request.is_running(order) and not self._prolong(request):
                self._leave(request)
                finished.append(request)
        self._rebatch()
        return finished

    def abort(self, now_s: float) -> list[Request]:
        """Take everything out. Tokens of the step under way are lost."""
        self.settle(now_s)
        taken = self._in_batch
        for request in taken:
            self._leave(request)
        taken += self._waiting
        self._waiting.clear()
        self._plan()
        return taken

    def cancel(self, request: Request, now_s: float) -> bool:
        """Take one request out: a waiting one at once, a running one at the next step boundary.

        Returns:
            Whether it is out already; else `run_boundary` will return it, with tokens remaining.
        """
        if not request.due_step:
            self._waiting.remove(request)
            return True
        self._interrupt(now_s)
        heapq.heappush(self._due, (self._step + self._boundary, request.order, request))
        return False

    def resume(self, now_s: float) -> None:
        """Begin at this time of a clock, and count anew."""
        self._stretch_s = now_s
        self.forget_load()
        self._rebatch()

    def settle(self, now_s: float) -> None:
        """End the stretch now; the step under way is lost."""
        if self.num_running:
            self._advance(min(self._boundary, self._steps_by(now_s)))
            self._spend(now_s - self._stretch_s)

    # ---- the stretch ----

    def _time_of(self, steps: int) -> float:
        if steps == 0:
            return self._stretch_s
        return self._stretch_s + self._prefill_s + self._cost.decode_s(steps, self.num_running, self.kv_tok)

    def _steps_by(self, now_s: float) -> int:
        seconds = now_s - self._stretch_s - self._prefill_s
        return self._cost.steps_within(seconds, self.num_running, self.kv_tok) if seconds > 0 else 0

    def _interrupt(self, now_s: float) -> None:
        """End the stretch at the first step boundary that is not before now."""
        if not self.num_running:
            self._stretch_s, self._boundary = now_s, 0
        elif now_s > self._stretch_s:
            steps = self._steps_by(now_s)
            self._boundary = min(self._boundary, steps if self._time_of(steps) >= now_s else steps + 1)
        else:
            self._boundary = 0
        self.next_boundary_s = self._time_of(self._boundary)

    def _advance(self, steps: int) -> None:
        if steps == 0:
            return
        seconds = self._time_of(steps) - self._stretch_s
        self.counters.kv_tok_s += seconds * steps * self.num_running / 2  # it grows evenly
        self._spend(seconds)
        self.counters.prefill_s += self._prefill_s
        self.counters.generated_tok += steps * self.num_running
        self._prefill_s = 0.0
        self._step += steps
        self.kv_tok += steps * self.num_running
        self.kv_peak_tok = max(self.kv_peak_tok, self.kv_tok)
        self._boundary -= steps

    def _spend(self, seconds: float) -> None:
        self._stretch_s += seconds
        self.counters.busy_s += seconds
        self.counters.request_s += seconds * self.num_running
        self.counters.kv_tok_s += seconds * self.kv_tok

    # ---- the batch ----

    def _prolong(self, request: Request) -> bool:
        """Whether a request goes on, though it has got the tokens that it came for."""
        request.note_tokens(self._step)
        more_tok = 0 if request.remaining_tok else self.more_of(request)
        if more_tok:
            request.remaining_tok, request.due_step = more_tok, self._step + more_tok
            heapq.heappush(self._due, (request.due_step, request.order, request))
        return more_tok > 0

    def _rebatch(self) -> None:
        has_preempted = False
        while self.kv_tok + self.num_running > self._cost.kv_room_tok:
            self._preempt_last()
            has_preempted = True
        while self._waiting and not has_preempted and self.num_running < self._max_num_seqs:
            needed_tok = self._waiting[0].context_tok + self._cost.request_kv_tok + 1
            if self.kv_tok + needed_tok + self.num_running > self._cost.kv_room_tok:
                break
            self._admit(self._waiting.popleft())
        self._plan()

    def _plan(self) -> None:
        """When does the batch change next, if no request comes?"""
        while self._due and not self._due[0][2].is_running(self._due[0][1]):
            heapq.heappop(self._due)
        if not self.num_running:
            self.next_boundary_s = inf
            return
        until_due = self._due[0][0] - self._step
        until_full = (self._cost.kv_room_tok - self.kv_tok) // self.num_running
        self._boundary = min(until_due, until_full)
        self.next_boundary_s = self._time_of(self._boundary)

    def _admit(self, request: Request) -> None:
        self._orders += 1
        request.order = self._orders
        request.start_step = self._step
        request.due_step = self._step + request.remaining_tok
        heapq.heappush(self._due, (request.due_step, request.order, request))
        self.num_running += 1
        self.kv_tok += request.context_tok + self._cost.request_kv_tok
        self._prefill_s += self._cost.prefill_s(request.prefill_tok)
        self.counters.prefilled_tok += request.prefill_tok
        self.counters.recomputed_tok += request.prefill_tok if request.is_recompute else 0
        while self._admitted and not self._admitted[-1].due_step:
            self._admitted.pop()
        self._admitted.append(request)
        if len(self._admitted) > 64 + 2 * self.num_running:
            self._admitted = self._in_batch

    def _preempt_last(self) -> None:
        while not self._admitted[-1].due_step:
            self._admitted.pop()
        request = self._admitted.pop()
        self._leave(request)
        request.prefill_tok = request.context_tok
        request.is_recompute = True
        self.counters.preemptions += 1
        self._waiting.appendleft(request)

    def _leave(self, request: Request) -> None:
        """Take a running request out, its tokens noted."""
        request.note_tokens(self._step)
        self.num_running -= 1
        self.kv_tok -= request.context_tok + self._cost.request_kv_tok
        request.due_step = 0
