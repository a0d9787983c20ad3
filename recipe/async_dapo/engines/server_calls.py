"""Calls of the load balancer to its servers: none waits for ever, and who is dead or silent is taken out."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError

from ..aio import RECONNECT_S, await_all
from ..core.concurrency import EngineLoad

logger = logging.getLogger(__name__)


class ServerCalls:
    """Args:
    handles: server id -> vLLM server actor; shared with the load balancer.
    timeout_s: longest time a server may take to obey [s].
    remove: takes servers out, also of `handles`.
    """

    def __init__(
        self, handles: dict[str, ActorHandle], *, timeout_s: float, remove: Callable[[list[str]], Awaitable[None]]
    ) -> None:
        self.handles = handles
        self._timeout_s = timeout_s
        self._remove = remove

    async def tell_all(self, method: str, *args: Any) -> dict[str, EngineLoad]:
        """Tell every server. Returns what those that are still there say of their engines."""
        server_ids = list(self.handles)
        loads = await await_all(self.tell(server_id, method, *args) for server_id in server_ids)
        return {key: load for key, load in zip(server_ids, loads, strict=True) if load is not None}

    async def tell(self, server_id: str, method: str, *args: Any) -> EngineLoad | None:
        """Tell a server, again if it cannot be reached: all of these calls may arrive twice. A dead one is removed, and
        one that does not obey in time is ended. Returns what it says of its engine, if it has one.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._insist(server_id, method, *args)
        except TimeoutError:
            logger.critical(
                "server %s has not answered to %s within async_dapo.engine_timeout_s=%s: it is ended",
                server_id,
                method,
                self._timeout_s,
            )
            if (handle := self.handles.get(server_id)) is not None:
                ray.kill(handle)
            await self._remove([server_id])
            return None

    async def _insist(self, server_id: str, method: str, *args: Any) -> EngineLoad | None:
        while (handle := self.handles.get(server_id)) is not None:
            try:
                return await getattr(handle, method).remote(*args)
            except ActorUnavailableError:
                logger.warning("server %s cannot be reached; %s is repeated", server_id, method)
                await asyncio.sleep(RECONNECT_S)
            except RayActorError:
                logger.error("server %s is dead: removed from the pool", server_id)
                await self._remove([server_id])
        return None
