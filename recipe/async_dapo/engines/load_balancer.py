"""Global load balancer: an actor that leases slots on vLLM servers, and stops and re-opens them all.

verl creates it through `rollout.router_config_path`.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError

from ..actor_limits import MAX_PENDING_CALLS
from ..aio import RECONNECT_S, await_all
from ..core.balance import Balance, Returned
from ..core.concurrency import ConcurrencyState, EngineLoad
from ..core.leases import Grant
from ..core.trajectory import Attachment
from .verl_protocol import VerlLoadBalancerProtocol

logger = logging.getLogger(__name__)

NO_SERVERS = "No available servers in load balancer"  # verl's words


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancerStats:
    """Since the servers were opened, or since it was asked last; `servers` and `lost_servers` since the start."""

    servers: int
    lost_servers: int
    acquired: int
    wait_s_sum: float
    wait_s_max: float
    inflight_max: int
    busy_s: float  # sum over requests of the time they were in flight
    loads: dict[str, EngineLoad]  # as of the last stop, what they said of their engines
    concurrency: dict[str, float]  # see `Balance.figures`
    concurrency_reason: str
    concurrency_state: ConcurrencyState  # for the checkpoint


class GlobalLoadBalancer(VerlLoadBalancerProtocol):
    """Requests go where the least KV cache is expected to be used; FIFO waiters; named leases, idempotent release. No
    server has more than `max_loads_per_server`, or than it has room for: see `Balance`.

    A waiting request is voided by `stop`: its `lease` returns None, and the caller gives its trajectory back.

    Args:
        servers: server id -> vLLM server actor.
        options: the router yaml: `max_loads_per_server` [requests, >= 1], `pool_size` [requests or None],
            `sizes_itself`, `first_context_tok` and `limit_tok` as of `Balance`,
            `pause_mode`: what `stop` does to running requests, `abort` or `keep` (see `AsyncDAPOServer`);
            `engine_timeout_s`: longest time a server may take to obey [s]; None = no limit.
    """

    def __init__(self, servers: dict[str, ActorHandle], options: dict[str, Any]) -> None:
        super().__init__()
        self._balance = Balance(
            max_per_server=options["max_loads_per_server"],
            pool_size=options.get("pool_size"),
            sizes_itself=options.get("sizes_itself", False),
            first_context_tok=options.get("first_context_tok", 1),
            limit_tok=options.get("limit_tok", 1),
        )
        self._table = self._balance.leases
        self._loads: dict[str, EngineLoad] = {}
        self._pause_mode = options.get("pause_mode", "abort")
        self._engine_timeout_s = options.get("engine_timeout_s")
        self._lost = 0
        self._handles = dict(servers)
        self._table.add_servers(servers)
        self._waiters: dict[str, asyncio.Future[str | None]] = {}
        self._is_open = True
        self._released = asyncio.Event()  # replaced whenever a lease comes back
        self._acquired = 0
        self._wait_s_sum = self._wait_s_max = self._busy_s = 0.0
        self._inflight_max = 0
        self._inflight_since = time.monotonic()

    async def lease(self, request_id: str, lease_id: str, prompt_tok: int = 0, generated_tok: int = 0) -> str | None:
        """Lease a slot under `lease_id`, waiting for one if need be; requests with the same id go to the same server,
        while that is not too full.

        Args:
            prompt_tok: of the request, without the response so far [tokens]; 0 = unknown.
            generated_tok: of the response so far [tokens].

        Returns:
            The server's id, see `server`; None if generation was stopped first, or the lease was released first.

        Raises:
            RuntimeError: if there is no server at all.
        """
        if not self._is_open:
            return None
        if not self._handles:
            raise RuntimeError(NO_SERVERS)
        started = time.monotonic()
        waiter: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._note_inflight()
        grants = self._balance.request(lease_id, request_id, prompt_tok=prompt_tok, generated_tok=generated_tok)
        self._waiters[lease_id] = waiter
        try:
            self._deliver(grants)
            if not waiter.done() and not self._table.is_waiting(lease_id):
                return None  # released before it was requested
            server_id = await waiter
        except asyncio.CancelledError:
            self._take_back(Returned(lease_id=lease_id))
            raise
        finally:
            del self._waiters[lease_id]
        if server_id is not None:
            self._note_wait(time.monotonic() - started)
        return server_id

    async def server(self, server_id: str) -> ActorHandle | None:
        """For clients to keep: to send a handle with every lease would cost more than the lease. None if it is gone."""
        return self._handles.get(server_id)

    async def release(self, lease_ids: Sequence[str]) -> None:
        """Give leases back. Releasing twice, or before the request arrives, is harmless."""
        await self.give_back([Returned(lease_id=lease_id) for lease_id in lease_ids])

    async def give_back(self, leases: Sequence[Returned]) -> None:
        """`release`, with what was learned while they were held."""
        for returned in leases:
            if returned.lease_id in self._waiters:
                self._answer(returned.lease_id, None)
            self._take_back(returned)

    async def server_of(self, lease_id: str) -> str | None:
        """Where a request that was frozen in its engine is; None if its server is gone."""
        return self._table.server_of(lease_id)

    async def abandon(self, attachments: list[Attachment]) -> None:
        """Take requests that nobody will continue out of their engines, then give their leases back."""
        by_server: dict[str, list[str]] = {}
        for attachment in attachments:
            by_server.setdefault(attachment.server_id, []).append(attachment.lease_id)
        await await_all(self._tell(server_id, "abort_requests", ids, True) for server_id, ids in by_server.items())
        for attachment in attachments:
            self._take_back(Returned(lease_id=attachment.lease_id))

    async def all_returned(self, kept_lease_ids: Collection[str]) -> None:
        """Wait until no lease is out but those of frozen requests: releases are not awaited by those who send them."""
        kept = set(kept_lease_ids)
        while not self._table.held_lease_ids <= kept:
            await self._released.wait()

    async def stop(self) -> float:
        """Void all waiting requests and stop every server. Returns the seconds until all engines were idle."""
        started = time.monotonic()
        self._is_open = False
        for lease_id in self._table.withdraw_waiting():
            self._answer(lease_id, None)
        self._loads = await self._tell_all("stop_generation", self._pause_mode)
        self._balance.close(self._loads)
        return time.monotonic() - started

    async def open(self, concurrency_state: ConcurrencyState | None = None) -> int:
        """Let every server generate again, and count from now on: frozen requests were idle since the stop.

        Args:
            concurrency_state: of a checkpoint, to go on with.

        Returns:
            Requests that the servers have room for together [count].
        """
        if concurrency_state is not None:
            self._balance.controller.restore(concurrency_state)
        self._deliver(self._balance.open(await self._tell_all("allow_generation")))
        self._reset_stats()
        self._is_open = True
        return self._balance.places

    async def add_servers(self, servers: dict[str, ActorHandle]) -> None:
        self._handles.update(servers)
        order = ("allow_generation",) if self._is_open else ("stop_generation", self._pause_mode)
        loads = await await_all(self._tell(server_id, *order) for server_id in servers)
        self._note_inflight()
        for server_id, load in zip(servers, loads, strict=True):
            if server_id in self._handles:
                self._deliver(self._balance.join(server_id, load))

    async def remove_servers(self, server_ids: list[str]) -> None:
        for server_id in server_ids:
            self._lost += self._handles.pop(server_id, None) is not None
        self._note_inflight()
        for server_id in server_ids:
            self._deliver(self._balance.leave(server_id))
        self._note_release()
        if not self._handles:
            for lease_id in self._table.withdraw_waiting():
                if not self._waiters[lease_id].done():
                    self._waiters[lease_id].set_exception(RuntimeError(NO_SERVERS))

    async def take_stats(self) -> LoadBalancerStats:
        self._note_inflight()
        stats = LoadBalancerStats(
            servers=len(self._handles),
            lost_servers=self._lost,
            acquired=self._acquired,
            wait_s_sum=self._wait_s_sum,
            wait_s_max=self._wait_s_max,
            inflight_max=self._inflight_max,
            busy_s=self._busy_s,
            loads=self._loads,
            concurrency=self._balance.figures(),
            concurrency_reason=self._balance.controller.reason,
            concurrency_state=self._balance.controller.state(),
        )
        self._reset_stats()
        return stats

    async def get_status(self) -> dict[str, Any]:
        return {
            "servers": self._table.inflight,
            "total_inflight": self._table.total_inflight,
            "active_servers": len(self._handles),
            "registered_handles": list(self._handles),
            "waiting": self._table.num_waiting,
            "capacity": self._table.capacity,
            "is_open": self._is_open,
        }

    # ---- internals ----

    def _deliver(self, grants: list[Grant]) -> None:
        for grant in grants:
            self._answer(grant.lease_id, grant.server_id)
        self._inflight_max = max(self._inflight_max, self._table.total_inflight)

    def _answer(self, lease_id: str, server_id: str | None) -> None:
        if not self._waiters[lease_id].done():  # a call that was cancelled gives its lease back itself
            self._waiters[lease_id].set_result(server_id)

    def _take_back(self, returned: Returned) -> None:
        self._note_inflight()
        self._deliver(self._balance.release(returned))
        self._note_release()

    def _note_release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()

    async def _tell_all(self, method: str, *args: Any) -> dict[str, EngineLoad]:
        """Tell every server. Returns what those that are still there say of their engines."""
        server_ids = list(self._handles)
        loads = await await_all(self._tell(server_id, method, *args) for server_id in server_ids)
        return {key: load for key, load in zip(server_ids, loads, strict=True) if load is not None}

    async def _tell(self, server_id: str, method: str, *args: Any) -> EngineLoad | None:
        """Tell a server, again if it cannot be reached: all of these calls may arrive twice. A dead one is removed, and
        one that does not obey in time is ended. Returns what it says of its engine, if it has one.
        """
        try:
            async with asyncio.timeout(self._engine_timeout_s):
                return await self._insist(server_id, method, *args)
        except TimeoutError:
            logger.critical(
                "server %s has not answered to %s within async_dapo.engine_timeout_s=%s: it is ended",
                server_id,
                method,
                self._engine_timeout_s,
            )
            if (handle := self._handles.get(server_id)) is not None:
                ray.kill(handle)
            await self.remove_servers([server_id])
            return None

    async def _insist(self, server_id: str, method: str, *args: Any) -> EngineLoad | None:
        while (handle := self._handles.get(server_id)) is not None:
            try:
                return await getattr(handle, method).remote(*args)
            except ActorUnavailableError:
                logger.warning("server %s cannot be reached; %s is repeated", server_id, method)
                await asyncio.sleep(RECONNECT_S)
            except RayActorError:
                logger.error("server %s is dead: removed from the pool", server_id)
                await self.remove_servers([server_id])
        return None

    def _note_inflight(self) -> None:
        """Add up the requests in flight over time; called before their number changes."""
        now = time.monotonic()
        self._busy_s += self._table.total_inflight * (now - self._inflight_since)
        self._inflight_since = now

    def _note_wait(self, waited_s: float) -> None:
        self._acquired += 1
        self._wait_s_sum += waited_s
        self._wait_s_max = max(self._wait_s_max, waited_s)

    def _reset_stats(self) -> None:
        self._acquired, self._wait_s_sum, self._wait_s_max = 0, 0.0, 0.0
        self._inflight_max = self._table.total_inflight
        self._busy_s, self._inflight_since = 0.0, time.monotonic()


# What `router_class` names: verl calls `.remote(servers, options)` on it.
GlobalLoadBalancerActor = ray.remote(num_cpus=0, max_concurrency=MAX_PENDING_CALLS)(GlobalLoadBalancer)
