"""A vLLM server that can be stopped at once and that says which policy version sampled each token."""

import asyncio
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from ..core.concurrency import EngineLoad
from ..core.standstill import STANDSTILL_TIMES, Standstill
from .engine import RequestTable, RunningRequest, StampingEngine
from .protocol import ABORTED, MORE, UNKNOWN, OutputExtra, counts_of, make_output
from .routes import watch_routes
from .started_server import StartedServer

PAUSE_MODES = ("abort", "hold")


class AsyncDAPOServer(StartedServer):
    """verl's vLLM server with a gate: `stop_generation` interrupts everything, `allow_generation` opens it again.

    An output holds the tokens since the last delivery of the request, its `stop_reason` says whether the request is
    over (`aborted`, `completed`) or still in the engine (`more`: a piece, so that little is lost if this server dies;
    `reattach` goes on with it). `extra_fields` has `segments`, pairs of (policy version, tokens), and the
    engine's own `finish_reason`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_stopped = False
        self._holds = False  # requests are in the engine, which takes no step
        self._delivers = asyncio.Event()
        self._delivers.set()
        self._requests = RequestTable()
        self._standstill = Standstill()

    async def ping(self) -> str | None:
        """Answers when the engine core does, between two of its steps; says what is wrong where it stands still."""
        await self.engine.is_sleeping()
        requests = 0 if self._is_stopped else len(self._requests.running())
        now_s = asyncio.get_running_loop().time()
        still_s = self._standstill.look(now_s, requests=requests, outputs=self._requests.chunks)
        if still_s <= STANDSTILL_TIMES * self._own_options["engine_timeout_s"]:
            return None
        return f"answers, but has yielded no token for {still_s:.0f} s, with {requests} requests in flight"

    def stamp(self, engine: Any) -> None:
        """Generate through a vLLM engine, and keep a record of what it generates."""
        self.engine = StampingEngine(engine, self._requests, lambda: self.global_steps)
        if self.config.enable_rollout_routing_replay:
            watch_routes(engine.output_processor, self._requests.set_routes)

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        began: int | None = None,
        **kwargs: Any,
    ) -> TokenOutput:
        """As verl's; `began` as in `RunningRequest`."""
        if self._is_stopped or self._requests.was_aborted_before(request_id):
            return self._empty(ABORTED)
        task = asyncio.ensure_future(super().generate(prompt_ids, sampling_params, request_id, **kwargs))
        self._requests.add(RunningRequest(request_id, task, self._own_options["delivery_tok"], began))
        return await self.reattach(request_id)

    async def reattach(self, request_id: str) -> TokenOutput:
        """Wait for a request that is in the engine: for its end, or its next piece."""
        request = self._requests.get(request_id)
        if request is None:
            return self._empty(UNKNOWN)
        piece = asyncio.ensure_future(request.has_piece.wait())
        try:
            await asyncio.wait({request.finished, piece}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            piece.cancel()
        if request.is_sent_back:
            self._requests.remove(request_id)
            return self._empty(ABORTED)
        if not request.finished.done():
            return request.deliver(MORE, self.load, counts={})
        await self._delivers.wait()
        self._requests.remove(request_id)
        ended = request.finished.result()
        return request.deliver(ended.stop_reason, self.load, counts=counts_of(ended))

    async def stop_generation(self, mode: str = "abort") -> EngineLoad | None:
        """Interrupt every request and refuse further ones. Returns, when the engine is idle, what it has reported.

        Args:
            mode: `abort` ends the requests; `hold` keeps those that have begun in the engine, with their KV cache,
                until `go_on`, and their callers go on waiting. Others would begin under the next weights with what the
                prefix cache has of these: they are sent back.
        """
        assert mode in PAUSE_MODES, f"mode={mode}: must be one of {PAUSE_MODES}"
        self._is_stopped = True
        try:
            if mode == "hold":
                await self.engine.pause_generation(mode="keep", clear_cache=False)
                self._holds = True
                await self._send_back_what_has_not_begun()
                if self._requests.is_aborting:  # a stop that came meanwhile aborts them
                    await self._take_steps()
            elif self._requests.running():
                await self._abort_all()
            return self._load_of_round()
        finally:  # the answer that the engine is idle goes out first: it would queue behind what was interrupted
            asyncio.get_running_loop().call_soon(self._delivers.set)

    def _load_of_round(self) -> EngineLoad | None:
        return None if self._meter is None else self._meter.load_of_round()

    async def _send_back_what_has_not_begun(self) -> None:
        not_begun = [request for request in self._requests.running() if not request.has_begun]
        for request in not_begun:
            request.is_sent_back = request.is_aborted = True  # also what the engine does not know yet
        await self.engine.abort([request.request_id for request in not_begun])

    async def _abort_all(self) -> None:
        running = self._requests.running()
        self._requests.is_aborting = True
        self._delivers.clear()
        await self.engine.abort([request.request_id for request in running])
        await self._take_steps()  # what the engine was admitting is aborted at its first token
        await asyncio.wait([request.finished for request in running])

    async def _take_steps(self) -> None:
        """Of an engine that holds requests."""
        if self._holds:
            self._holds = False
            await self.engine.resume_generation()

    async def allow_generation(self) -> EngineLoad | None:
        """Open the gate. Returns what is known of the engine, which counts from now on."""
        if self._meter is not None:
            self._meter.reset()
        return await self.go_on()

    async def go_on(self) -> EngineLoad | None:
        """As `allow_generation`, after a stop in the middle of what is counted."""
        self._requests.is_aborting = False
        self._is_stopped = False  # before anything is awaited: a stop that comes meanwhile holds
        await self._take_steps()
        return self.load

    async def turn_over(self) -> EngineLoad | None:
        """What the engine has reported, which counts anew from now on, while it goes on."""
        load = self._load_of_round()
        if self._meter is not None:
            self._meter.reset()
        return load

    async def abort_requests(self, request_ids: list[str], forget: bool = False) -> None:
        """Interrupt some requests, also those that arrive later than this call.

        Args:
            forget: what they have generated will not be fetched.
        """
        known = self._requests.mark_aborted(request_ids)
        await self.engine.abort(known)
        if forget:
            for request_id in known:
                self._requests.remove(request_id)

    def _empty(self, stop_reason: str) -> TokenOutput:
        extra = OutputExtra(segments=[], finish_reason=None, load=self.load)
        return make_output([], [], stop_reason=stop_reason, extra=extra)
