"""A vLLM server whose engine gets new weights in the middle of a round, and may hold its requests meanwhile."""

from collections.abc import Sequence
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from ...core.concurrency import EngineLoad
from ...core.leases import RecentDict
from ...engines.engine import RunningRequest
from ...engines.protocol import ABORTED, UNKNOWN
from ...engines.server import AsyncDAPOServer

PAUSE_MODES = ("abort", "hold")


class HoldingServer(AsyncDAPOServer):
    """The core's server, whose stop may hold requests, and which goes on in the middle of what is counted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._holds = False  # requests are in the engine, which takes no step
        self._sent_back = RecentDict[str, None]()  # to their callers: further output is discarded

    async def stop_generation(self, mode: str = "abort") -> EngineLoad | None:
        """As the core's.

        Args:
            mode: `abort` ends the requests; `hold` keeps those that have begun in the engine, with their KV cache,
                until `go_on`, and their callers go on waiting. Others would begin under the next weights with what the
                prefix cache has of these: they are sent back.
        """
        assert mode in PAUSE_MODES, f"mode={mode}: must be one of {PAUSE_MODES}"
        if mode == "abort":
            return await super().stop_generation()
        self._is_stopped = True
        await self.engine.pause_generation(mode="keep", clear_cache=False)
        self._holds = True
        not_begun = [request for request in self._requests.running() if not request.has_begun]
        for request in not_begun:  # also what the engine does not know yet
            request.is_aborted = True
            self._sent_back[request.request_id] = None
        await self.engine.abort([request.request_id for request in not_begun])
        if self._requests.is_aborting:  # a stop that came meanwhile aborts them
            await self._take_steps()
        return self._load_of_round()

    async def reattach(self, request_id: str) -> TokenOutput:
        output = await super().reattach(request_id)
        if output.stop_reason == UNKNOWN or request_id not in self._sent_back:
            return output
        self._requests.remove(request_id)
        return self._empty(ABORTED)

    async def _abort(self, running: Sequence[RunningRequest]) -> None:
        await super()._abort(running)
        await self._take_steps()  # what the engine is admitting is aborted at its first token

    async def _take_steps(self) -> None:
        """Of an engine that holds requests."""
        if self._holds:
            self._holds = False
            await self.engine.resume_generation()

    async def allow_generation(self) -> EngineLoad | None:
        load = await super().allow_generation()  # before anything is awaited: a stop that comes meanwhile holds
        await self._take_steps()
        return load

    async def go_on(self) -> EngineLoad | None:
        """As `allow_generation`, after a stop in the middle of what is counted."""
        self._requests.is_aborting = self._is_stopped = False
        await self._take_steps()
        return self.load

    async def turn_over(self) -> EngineLoad | None:
        """What the engine has reported, which counts anew from now on, while it goes on."""
        load = self._load_of_round()
        if self._meter is not None:
            self._meter.reset()
        return load
