"""A vLLM server that can be stopped at once and that says which policy version sampled each token."""

import asyncio
from collections.abc import Sequence
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from ..core.concurrency import EngineLoad
from ..core.standstill import STANDSTILL_TIMES, Standstill
from .engine import RequestTable, RunningRequest, StampingEngine
from .protocol import ABORTED, MORE, UNKNOWN, OutputExtra, counts_of, make_output
from .routes import watch_routes
from .started_server import StartedServer


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
        if not request.finished.done():
            return request.deliver(MORE, self.load, counts={})
        await self._delivers.wait()
        self._requests.remove(request_id)
        ended = request.finished.result()
        return request.deliver(ended.stop_reason, self.load, counts=counts_of(ended))

    async def stop_generation(self) -> EngineLoad | None:
        """Interrupt every request and refuse further ones. Returns, when the engine is idle, what it has reported."""
        self._is_stopped = True
        try:
            if running := self._requests.running():
                self._requests.is_aborting = True
                self._delivers.clear()
                await self._abort(running)  # what the engine is admitting is aborted at its first token
                await asyncio.wait([request.finished for request in running])
            return self._load_of_round()
        finally:  # the answer that the engine is idle goes out first: it would queue behind what was interrupted
            asyncio.get_running_loop().call_soon(self._delivers.set)

    def _load_of_round(self) -> EngineLoad | None:
        return None if self._meter is None else self._meter.load_of_round()

    async def _abort(self, running: Sequence[RunningRequest]) -> None:
        await self.engine.abort([request.request_id for request in running])

    async def allow_generation(self) -> EngineLoad | None:
        """Open the gate. Returns what is known of the engine, which counts from now on."""
        if self._meter is not None:
            self._meter.reset()
        self._requests.is_aborting = self._is_stopped = False
        return self.load

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
