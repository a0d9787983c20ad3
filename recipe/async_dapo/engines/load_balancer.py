"""Global load balancer: an actor that leases vLLM servers to requests, and stops and re-opens them all.

verl creates it through `rollout.router_config_path`.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import ray
from ray.actor import ActorHandle

from ..core.concurrency import ConcurrencyState, EngineLoad
from ..core.leases import MAX_PENDING_CALLS, Balance, Grant, Requested, Returned
from ..core.summed import Summed
from ..runtime.aio import await_all
from .lives import EngineLives

_NO_SERVERS = "No available servers in load balancer"  # verl's words


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancerStats(Summed):
    """What the load balancer has counted since the servers were opened, or since it was asked last; `servers` and
    `lost_servers` since the start."""

    LATEST: ClassVar[tuple[str, ...]] = (
        "servers",
        "lost_servers",
        "capacity",
        "steered",
        "concurrency_reason",
        "concurrency_state",
    )
    LARGEST = ("inflight_max",)

    servers: int
    lost_servers: int
    acquired: int
    inflight_max: int
    busy_s: float  # sum over requests of the time they were in flight
    loads: dict[str, EngineLoad]  # what they said of their engines at a stop
    capacity: int  # requests that the servers may have in flight together, from now on
    steered: int  # times that servers were sized anew within the round
    concurrency_reason: str  # of `capacity`
    concurrency_state: ConcurrencyState


class _InflightMeter:
    """Requests in flight over time, and how long others waited. `note` comes before their number changes."""

    def __init__(self) -> None:
        self.reset(0)

    def reset(self, inflight: int) -> None:
        self.acquired = 0
        self.inflight_max = inflight
        self.busy_s, self._since = 0.0, time.monotonic()

    def note(self, inflight: int) -> None:
        now = time.monotonic()
        self.busy_s += inflight * (now - self._since)
        self._since = now


class GlobalLoadBalancer:
    """Requests go to the least loaded server; FIFO waiters; named leases, idempotent release. No server has more than
    `max_loads_per_server`, or than its engine has capacity for: see `Balance`.

    A queued request is voided by `stop`: its caller is told so, and gives its trajectory back.

    Args:
        servers: server id -> vLLM server actor.
        options: the router yaml: `balance`, the arguments of `Balance`; `engine_timeout_s`: longest time a server may
            take to obey [s].
    """

    def __init__(self, servers: dict[str, ActorHandle], options: dict[str, Any]) -> None:
        self._balance = Balance(**options["balance"])
        self._table = self._balance.leases
        self._loads: dict[str, EngineLoad] = {}
        self._lives = EngineLives(servers, timeout_s=options["engine_timeout_s"], on_lost=self._forget)
        self._table.add_servers(servers)
        self._waiters: dict[str, asyncio.Future[str | None]] = {}
        self._is_open = True
        self._released = asyncio.Event()  # replaced whenever a lease comes back
        self._meter = _InflightMeter()

    async def exchange(self, requests: Sequence[Requested], returned: Sequence[Returned]) -> dict[str, str | None]:
        """Take leases back, with what was learned while they were held; then lease a server to each request. To return
        a lease twice, or before its request arrives, is harmless.

        Returns:
            Lease -> the server's id, see `server`; None if generation has stopped, or the lease was returned before.
            Those that are queued are left out: see `granted`.

        Raises:
            RuntimeError: if a server is asked for and there is none at all.
        """
        for lease in returned:
            if (waiter := self._waiters.pop(lease.lease_id, None)) is not None and not waiter.done():
                waiter.set_result(None)
            self._take_back(lease)
        if not self._is_open:
            return {request.lease_id: None for request in requests}
        if requests and not self._lives.alive:
            raise self._no_server_left()
        decided: dict[str, str | None] = {}
        for request in requests:
            lease_id = request.lease_id
            self._meter.note(self._table.total_inflight)
            grants = self._table.request(lease_id, request.request_id, group=request.group)
            self._waiters[lease_id] = waiter = asyncio.get_running_loop().create_future()
            self._deliver(grants)
            if not self._table.is_queued(lease_id):
                decided[lease_id] = waiter.result() if waiter.done() else None
                del self._waiters[lease_id]
        return decided

    async def granted(self, lease_id: str) -> str | None:
        """Wait for a server for a request that is queued. Returns and raises as `exchange`."""
        if (waiter := self._waiters.get(lease_id)) is None:
            return None
        try:
            server_id = await waiter
        except asyncio.CancelledError:
            self._take_back(Returned(lease_id=lease_id))
            raise
        finally:
            self._waiters.pop(lease_id, None)
        if server_id is None and not self._lives.alive:
            raise self._no_server_left()
        return server_id

    async def server(self, server_id: str) -> ActorHandle | None:
        """For clients to keep: to send a handle with every lease would cost more than the lease. None if it is gone."""
        return self._lives.alive.get(server_id)

    async def abandon(self, request: Returned) -> None:
        """Take a request whose caller is gone out of its engine, then give its lease back."""
        await self._lives.ask(request.server_id, "abort_requests", [request.lease_id], True)
        self._take_back(request)

    async def all_returned(self) -> None:
        """Wait until no lease is out: releases are not awaited by their senders."""
        while self._table.held_lease_ids:
            await self._released.wait()

    async def stop(self) -> None:
        """Void all queued requests, stop every server, and wait until all engines are idle."""
        self._is_open = False
        for lease_id in self._table.withdraw_queued():
            self._answer(lease_id, None)
        self._loads = await self._lives.ask_all("stop_generation")
        self._balance.close(self._loads)

    async def open(self, concurrency_state: ConcurrencyState | None = None) -> int:
        """Let every server generate again, and count from now on.

        Args:
            concurrency_state: of a checkpoint, to go on with.

        Returns:
            Requests that the servers may have in flight together [count].

        Raises:
            RuntimeError: if there is no server at all: no group would start, and so none would ask for one.
        """
        if concurrency_state is not None:
            self._balance.controller.restore(concurrency_state)
        loads = await self._allow_generation()
        if not self._lives.alive:
            raise self._no_server_left()
        self._deliver(self._balance.open(loads))
        self._meter.reset(self._table.total_inflight)
        self._is_open = True
        return self._balance.capacity

    async def watch(self, server_id: str, name: str, servers: Sequence[ActorHandle]) -> None:
        """Notice from now on when an engine dies, which has a server on each of its nodes."""
        self._lives.watch(server_id, name, servers)

    async def look_after_servers(self, server_ids: Sequence[str] | None = None) -> None:
        """Ask every server, or some, for a sign of life; one that is dead, silent or stands still is lost."""
        await await_all(self._lives.look_after(server_id) for server_id in server_ids or list(self._lives.alive))

    async def call_extension(self, name: str, place: str, *args: Any) -> list[Any]:
        """As a server's, of all engines that live."""
        answers = await self._lives.ask_all("call_extension", name, place, *args)
        return [answer for of_engine in answers.values() for answer in of_engine]

    async def sleep(self) -> None:
        """Have every engine free its accelerator memory, once its data-parallel ranks are at rest."""
        await self._lives.ask_all("wait_for_requests_to_drain")
        await self._lives.ask_all("sleep")

    async def lost_engines(self) -> dict[str, str]:
        """Engines that are lost -> which they were, and what became of them."""
        return self._lives.lost

    async def explain_loss(self, server_id: str, why: str) -> None:
        """What has been found out about a lost engine."""
        self._lives.explain(server_id, why)

    async def take_stats(self) -> LoadBalancerStats:
        self._meter.note(self._table.total_inflight)
        loads, self._loads = self._loads, {}
        stats = LoadBalancerStats(
            servers=len(self._lives.alive),
            lost_servers=len(self._lives.lost),
            acquired=self._meter.acquired,
            inflight_max=self._meter.inflight_max,
            busy_s=self._meter.busy_s,
            loads=loads,
            capacity=self._balance.capacity,
            steered=self._balance.steered,
            concurrency_reason=self._balance.controller.reason,
            concurrency_state=self._balance.controller.learned,
        )
        self._meter.reset(self._table.total_inflight)
        return stats

    async def end(self) -> None:
        """The run is over."""
        self._lives.end_watches()

    async def get_status(self) -> dict[str, Any]:
        return {
            "servers": self._table.inflight,
            "total_inflight": self._table.total_inflight,
            "active_servers": len(self._lives.alive),
            "registered_handles": list(self._lives.alive),
            "queued": self._table.num_queued,
            "capacity": self._table.capacity,
            "is_open": self._is_open,
        }

    # ---- internals ----

    async def _allow_generation(self) -> dict[str, EngineLoad]:
        """Returns what those say of their engines that generate from now on."""
        return await self._lives.ask_all("allow_generation")

    def _forget(self, server_id: str) -> None:
        """An engine is lost: its leases are void, and with the last engine all requests that wait."""
        self._meter.note(self._table.total_inflight)
        self._deliver(self._balance.leave(server_id))
        self._note_release()
        if not self._lives.alive:
            for lease_id in self._table.withdraw_queued():
                self._answer(lease_id, None)

    def _no_server_left(self) -> RuntimeError:
        return RuntimeError(f"{_NO_SERVERS}: no engine is left: {'; '.join(self._lives.lost.values()) or 'none began'}")

    def _deliver(self, grants: list[Grant]) -> None:
        for grant in grants:
            self._answer(grant.lease_id, grant.server_id)
        self._meter.inflight_max = max(self._meter.inflight_max, self._table.total_inflight)

    def _answer(self, lease_id: str, server_id: str | None) -> None:
        if not (waiter := self._waiters[lease_id]).done():  # a call that was cancelled gives its lease back itself
            waiter.set_result(server_id)
            self._meter.acquired += server_id is not None

    def _take_back(self, returned: Returned) -> None:
        self._meter.note(self._table.total_inflight)
        self._deliver(self._balance.release(returned))
        self._note_release()

    def _note_release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()


# What `router_class` names: verl calls `.remote(servers, options)` on it.
GlobalLoadBalancerActor = ray.remote(num_cpus=0, max_concurrency=MAX_PENDING_CALLS)(GlobalLoadBalancer)
