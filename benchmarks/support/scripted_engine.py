"""A server actor that speaks our server protocol without a model: requests wait until they are told to end."""

import asyncio
import time
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from recipe.async_dapo.engines.engine_requests import ABORTED

TOKENS_PER_REQUEST = 64


class ScriptedServer:
    """Holds every request until the stop, or for `decode_s` seconds."""

    def __init__(self, decode_s: float | None = None) -> None:
        self._decode_s = decode_s
        self._stopped = asyncio.Event()
        self._active = 0
        self._idle = asyncio.Event()
        self._is_full = asyncio.Event()
        self._places = 0
        self._idle_at_s = 0.0
        self._delivers = asyncio.Event()
        self._delivers.set()

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **kwargs: Any
    ) -> TokenOutput:
        if self._stopped.is_set():
            return _output([], ABORTED)
        self._active += 1
        self._idle.clear()
        if self._active == self._places:
            self._is_full.set()
        try:
            async with asyncio.timeout(self._decode_s):
                await self._stopped.wait()
            stop_reason = ABORTED
        except TimeoutError:
            stop_reason = "completed"
        finally:
            self._active -= 1
            if self._active == 0:
                self._idle_at_s = time.perf_counter()
                self._idle.set()
        await self._delivers.wait()
        return _output(list(range(TOKENS_PER_REQUEST)), stop_reason)

    async def stop_generation(self, mode: str = "abort") -> None:
        self._stopped.set()
        if self._active:
            self._delivers.clear()
            await self._idle.wait()
            asyncio.get_running_loop().call_soon(self._delivers.set)  # as the real server does

    async def allow_generation(self) -> None:
        self._stopped.clear()

    async def abort_requests(self, request_ids: list[str], forget: bool = False) -> None:
        pass

    async def wait_full(self, places: int) -> None:
        """Until as many requests run."""
        self._places = places
        if self._active < places:
            self._is_full.clear()
            await self._is_full.wait()

    async def num_running(self) -> int:
        return self._active

    async def idle_at_s(self) -> float:
        """When the last request ended, on the clock that all processes of a machine share [s]."""
        return self._idle_at_s


def _output(token_ids: list[int], stop_reason: str) -> TokenOutput:
    return TokenOutput(
        token_ids=token_ids,
        log_probs=[-1.0] * len(token_ids),
        stop_reason=stop_reason,
        extra_fields={
            "segments": [(0, len(token_ids))] if token_ids else [],
            "finish_reason": "abort" if stop_reason == ABORTED else "stop",
            "load": None,
        },
    )
