"""Stand-ins for other processes: an actor handle that behaves like Ray's, a scripted engine server, a scripted reward.

`ScriptedServer` is also an actor for tests and benchmarks on real Ray: `ray.remote(ScriptedServer)`.
"""

import asyncio
import copy
import traceback
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ray.exceptions import ActorDiedError, RayTaskError
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.workers.rollout.replica import TokenOutput

from .simulation import REMOTE


class RemoteCall(Awaitable[Any]):
    """What `.remote()` returns. The call goes on whether or not somebody awaits it or stops awaiting it."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # an error nobody awaits is Ray's

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._result().__await__()

    @property
    def is_done(self) -> bool:
        return self._task.done()

    async def _result(self) -> Any:
        await asyncio.wait([self._task])
        return copy.deepcopy(self._task.result())


class FakeHandle:
    """`handle.method.remote(...)` calls `target.method` as an async Ray actor would.

    Arguments and results are copies; a killed actor fails every call, begun or
    not, with `ActorDiedError`; an error of the method arrives as `RayTaskError`.

    Args:
        target: the object behind the handle.
        latency_s: time a call takes to reach the actor, and its answer to come back [s]; may depend on the method.
        in_order: whether calls start in the order they were made. Ray keeps it only per caller.
    """

    def __init__(
        self, target: Any, *, latency_s: float | Callable[[str], float] = 0.0, in_order: bool = True
    ) -> None:
        self.target = target
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._latency_s = latency_s
        self._in_order = in_order
        self._starts_s = 0.0
        self._dead: asyncio.Event | None = None

    def __getattr__(self, name: str) -> "_Method":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Method(self, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "FakeHandle":
        return self  # handles are references

    def kill(self) -> None:
        self._death.set()

    @property
    def _death(self) -> asyncio.Event:
        if self._dead is None:
            self._dead = asyncio.Event()
        return self._dead

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteCall:
        args, kwargs = copy.deepcopy((args, kwargs))
        self.calls.append((method, args, kwargs))
        latency_s = self._latency_s(method) if callable(self._latency_s) else self._latency_s
        loop = asyncio.get_event_loop()  # also set while it is not running: a trainer is synchronous
        starts_s = loop.time() + latency_s
        if self._in_order:
            self._starts_s = starts_s = max(self._starts_s, starts_s)
        call = self._run(method, args, kwargs, starts_s=starts_s, latency_s=latency_s)
        return RemoteCall(loop.create_task(call, name=f"{REMOTE} {type(self.target).__name__}.{method}"))

    async def _run(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, starts_s: float, latency_s: float
    ) -> Any:
        work = asyncio.ensure_future(self._work(method, args, kwargs, starts_s=starts_s, latency_s=latency_s))
        work.set_name(f"{REMOTE} work")
        death = asyncio.ensure_future(self._death.wait())
        death.set_name(f"{REMOTE} death")
        try:
            await asyncio.wait([work, death], return_when=asyncio.FIRST_COMPLETED)
            if self._death.is_set():
                raise ActorDiedError()
            return work.result()
        finally:
            work.cancel()
            death.cancel()

    async def _work(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, starts_s: float, latency_s: float
    ) -> Any:
        if starts_s > asyncio.get_running_loop().time():
            await asyncio.sleep(starts_s - asyncio.get_running_loop().time())
        try:
            result = getattr(self.target, method)(*args, **kwargs)
            if asyncio.iscoroutine(result):
                result = await result
        except Exception as error:
            raise RayTaskError(method, traceback.format_exc(), error).as_instanceof_cause() from None
        if latency_s:
            await asyncio.sleep(latency_s)
        return result


@dataclass(frozen=True, slots=True)
class _Method:
    handle: FakeHandle
    name: str

    def remote(self, *args: Any, **kwargs: Any) -> RemoteCall:
        return self.handle.call(self.name, args, kwargs)


@dataclass(slots=True)
class ScriptedRequest:
    """A request on a scripted server: what it was asked, what it has generated, and what of it was delivered."""

    prompt_ids: list[int]
    max_tokens: int
    length_tok: int
    token_ids: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)  # policy version of each token
    delivered_tok: int = 0
    finish_reason: str | None = None
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    decoding: asyncio.Task[None] | None = None


class ScriptedServer:
    """`AsyncDAPOServer`'s protocol without an engine: every request makes a token every `token_s`.

    Token k of a response to a prompt is `token_at(prompt_ids, k)`, whatever server, attempt and segment it comes from,
    so that a test can tell a response that was put together wrongly. Its log-prob is `-token / 1000`.

    Args:
        length_of: response length of a prompt [tokens], by the prompt without what was generated before.
        token_s: time per token [s].
        prompt_len_tok: length of all prompts: what follows is a response to be continued [tokens].
        hangs: whether aborts are ignored.
    """

    def __init__(
        self,
        length_of: Callable[[list[int]], int] | int = 8,
        *,
        token_s: float = 1.0,
        prompt_len_tok: int = 1,
        hangs: bool = False,
    ) -> None:
        self._length_of = length_of
        self._token_s = token_s
        self._prompt_len_tok = prompt_len_tok
        self._hangs = hangs
        self.global_steps = 0
        self.is_stopped = False
        self.running: dict[str, ScriptedRequest] = {}  # in the engine, frozen or not
        self.generated: dict[str, list[int]] = {}  # request -> tokens, of every request that has ended
        self.max_running = 0
        self._decodes = asyncio.Event()
        self._decodes.set()
        self._paused = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **kwargs: Any
    ) -> TokenOutput:
        assert request_id not in self.running and request_id not in self.generated, "a request id was used twice"
        if self.is_stopped:
            return self._output(ScriptedRequest(prompt_ids, 0, 0), "aborted")
        request = self._admit(prompt_ids, sampling_params)
        self.running[request_id] = request
        self.max_running = max(self.max_running, len(self.running))
        self._idle.clear()
        request.decoding = asyncio.create_task(self._decode(request_id, request), name=f"{REMOTE} decode")
        return await self.reattach(request_id)

    async def reattach(self, request_id: str) -> TokenOutput:
        request = self.running.get(request_id)
        if request is None:
            return self._output(ScriptedRequest([], 0, 0), "unknown")
        assert request.decoding is not None
        paused = asyncio.create_task(self._paused.wait(), name=f"{REMOTE} pause")
        await asyncio.wait([request.decoding, paused], return_when=asyncio.FIRST_COMPLETED)
        paused.cancel()
        if not request.decoding.done():
            return self._output(request, "paused")
        return self._output(request, "aborted" if request.finish_reason == "abort" else "completed")

    async def stop_generation(self, mode: str = "abort") -> int:
        self.is_stopped = True
        stopped = list(self.running)
        if mode == "keep":
            self._decodes.clear()
            self._paused.set()
        else:
            await self.abort_requests(stopped)
            await self._idle.wait()
        return len(stopped)

    async def allow_generation(self) -> None:
        self.is_stopped = False
        self._paused.clear()
        self._decodes.set()

    async def abort_requests(self, request_ids: list[str], forget: bool = False) -> None:
        for request_id in request_ids:
            if request_id in self.running and not self._hangs:
                self.running[request_id].aborted.set()

    async def set_global_steps(self, global_steps: int) -> None:
        self.global_steps = global_steps

    async def num_running(self) -> int:
        return len(self.running)

    def _admit(self, prompt_ids: list[int], sampling_params: dict[str, Any]) -> ScriptedRequest:
        prompt, generated = prompt_ids[: self._prompt_len_tok], prompt_ids[self._prompt_len_tok :]
        whole_tok = self._length_of if isinstance(self._length_of, int) else self._length_of(prompt)
        return ScriptedRequest(prompt_ids, sampling_params["max_tokens"], max(1, whole_tok - len(generated)))

    async def _decode(self, request_id: str, request: ScriptedRequest) -> None:
        """Generate to the end, in vLLM's words."""
        request.finish_reason = "stop" if request.length_tok <= request.max_tokens else "length"
        while len(request.token_ids) < min(request.length_tok, request.max_tokens):
            if await _happens_within(request.aborted, self._token_s):
                request.finish_reason = "abort"
                break
            await _either(self._decodes, request.aborted)
            if not self._decodes.is_set():
                continue
            position = len(request.prompt_ids) - self._prompt_len_tok + len(request.token_ids)
            request.token_ids.append(token_at(request.prompt_ids[: self._prompt_len_tok], position))
            request.stamps.append(self.global_steps)
        self.generated[request_id] = request.token_ids
        del self.running[request_id]
        if not self.running:
            self._idle.set()

    def _output(self, request: ScriptedRequest, stop_reason: str) -> TokenOutput:
        """Everything since the last delivery."""
        token_ids = request.token_ids[request.delivered_tok :]
        stamps = request.stamps[request.delivered_tok :]
        request.delivered_tok = len(request.token_ids)
        return TokenOutput(
            token_ids=token_ids,
            log_probs=[log_prob_of(token) for token in token_ids],
            stop_reason=stop_reason,
            extra_fields={
                "global_steps": self.global_steps,
                "segments": [(version, len(list(same))) for version, same in groupby(stamps)],
                "finish_reason": request.finish_reason,
            },
        )


def token_at(prompt_ids: list[int], position: int) -> int:
    return 1000 * (sum(prompt_ids) % 97) + position


def log_prob_of(token: int) -> float:
    return -token / 1000


async def _happens_within(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait(), name=f"{REMOTE} wait") for event in (one, other)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


class ScriptedReward:
    """`compute_score` of verl's worker. What an attempt does: a score, an error to raise, or seconds to take.

    Args:
        attempts: what the first, second, ... call does; the last one goes on.
        metric: name of the raw metric it returns; None = it returns no metric.
    """

    def __init__(self, *attempts: float | Exception, takes_s: float = 0.0, metric: str | None = "acc") -> None:
        self._attempts = list(attempts) or [1.0]
        self._takes_s = takes_s
        self._metric = metric
        self.calls = 0

    async def __call__(self, outputs: list[AgentLoopOutput], sample: dict[str, Any]) -> None:
        attempt = self._attempts[min(self.calls, len(self._attempts) - 1)]
        self.calls += 1
        if self._takes_s:
            await asyncio.sleep(self._takes_s)
        if isinstance(attempt, Exception):
            raise attempt
        outputs[-1].reward_score = attempt
        outputs[-1].extra_fields["reward_extra_info"] = {} if self._metric is None else {self._metric: attempt}
