"""The load balancer of engines that have GPUs of their own: each gets new weights by itself, at its best moment, while
the others generate. Which is next is decided by `RollingUpdate`.

    trainer --publish--> an engine's turn: it gets no further requests
                            consistent: what it runs ends
                            stopped: its requests come back, or are held in it with their KV cache
                            its workers take the weights from the object store
                            it goes on, and gets requests again
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import RayError

from ...core.concurrency import ConcurrencyState, EngineLoad
from ...core.leases import MAX_PENDING_CALLS, Returned
from ...engines.load_balancer import GlobalLoadBalancer, LoadBalancerStats
from ...record.keys import PREFIX
from ...runtime.aio import await_all
from .rolling_update import Phase, RollingUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingStats(LoadBalancerStats):
    """What the load balancer has counted, and what became of weights.

    Attributes:
        versions_behind: the oldest weights of an engine are, of the trainer's.
        updates_s: how long each engine that got new ones took no requests [s].
    """

    LATEST = (*LoadBalancerStats.LATEST, "versions_behind")

    versions_behind: int
    updates_s: tuple[float, ...]

    @property
    def metrics(self) -> dict[str, float]:
        """Of a step."""
        found = {f"{PREFIX}load_balancer/versions_behind": float(self.versions_behind)}
        return found | ({f"{PREFIX}load_balancer/update_s": fmean(self.updates_s)} if self.updates_s else {})


class RollingLoadBalancer(GlobalLoadBalancer):
    """A load balancer whose servers get new weights one after another, while the others generate.

    Args:
        options: as of `GlobalLoadBalancer`, and `rolling`: `drains`, `max_lag` as of `RollingUpdate`; `pause_mode`,
            what becomes of requests of an engine that is updated (`abort`, `hold`). An engine's workers, too, may take
            `engine_timeout_s` at most to bring it a bucket of weights.
    """

    def __init__(self, servers: dict[str, ActorHandle], options: dict[str, Any]) -> None:
        super().__init__(servers, options)
        self._rolling = options["rolling"]
        self._engine_timeout_s = options["engine_timeout_s"]
        self._updates = RollingUpdate(version=-1, drains=self._rolling["drains"], max_lag=self._rolling["max_lag"])
        self._buckets: list[ObjectRef] = []  # of the newest version
        self._workers: dict[str, list[ActorHandle]] = {}  # beside the engines
        self._running: dict[str, asyncio.Task[None]] = {}  # updates
        self._limits: dict[str, asyncio.Timeout] = {}  # of engines that take weights
        self._generating: set[str] = set()  # told to since the last stop, and not stopped for an update
        self._closed_s: dict[str, float] = {}  # servers that take no requests -> since when, monotonic
        self._updates_s: list[float] = []  # that engines took no requests for new weights, since this was asked last
        self._coordinator: ActorHandle | None = None
        self._changed = asyncio.Event()  # replaced whenever an engine has got weights or has left

    async def enroll(self, workers: dict[str, list[ActorHandle]]) -> None:
        """Servers, each with the workers that bring its weights; they get the newest before any request."""
        for server_id, beside in workers.items():
            if server_id in self._lives.alive:
                self._workers[server_id] = beside
                self._close(server_id)
                self._updates.join(server_id)
                self._begin_update(server_id)

    async def join(self, server_id: str, handle: ActorHandle, workers: list[ActorHandle]) -> None:
        """An engine that has started in mid-run."""
        self._lives.join(server_id, handle)
        self._meter.note(self._table.total_inflight)
        self._table.add_servers([server_id], is_closed=True)
        await self.enroll({server_id: workers})

    async def publish(self, version: int, buckets: Sequence[ObjectRef]) -> None:
        """The trainer has left newer weights in the object store. Engines take them one after another."""
        self._buckets = list(buckets)
        self._updates.publish(version)
        self._move()

    async def note_progress(self, server_id: str) -> None:
        """An engine has taken one more bucket of weights, and may take as long for the next."""
        if (limit := self._limits.get(server_id)) is not None and not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time() + self._engine_timeout_s)

    async def caught_up(self) -> None:
        """Wait until every engine that is left has the newest weights."""
        while any(self._updates.version_of(server_id) < self._updates.newest_version for server_id in self._workers):
            await self._changed.wait()

    async def versions(self) -> dict[str, int]:
        """Server -> the policy version of its weights; -1 before it has any."""
        return {server_id: self._updates.version_of(server_id) for server_id in self._workers}

    async def report_versions_to(self, coordinator: ActorHandle) -> None:
        """It starts groups as the oldest weights in an engine allow."""
        self._coordinator = coordinator
        self._tell_versions()

    async def open(self, concurrency_state: ConcurrencyState | None = None) -> int:
        capacity = await super().open(concurrency_state)
        self._move()
        return capacity

    async def _allow_generation(self) -> dict[str, EngineLoad]:
        """Engines that are being updated join when they have the weights, which may be while the others are told."""
        told: set[str] = set()
        loads: dict[str, EngineLoad] = {}
        while silent := self._serving() - (told & self._generating):
            told |= silent
            self._generating |= silent
            loads |= await self._lives.ask_all("allow_generation", but=self._lives.alive.keys() - silent)
        return {key: load for key, load in loads.items() if key in self._lives.alive}

    async def stop(self) -> None:
        self._generating.clear()
        await super().stop()
        self._move()

    async def turn_over(self) -> tuple[LoadBalancerStats, int]:
        """A step's batch has been handed over: learn from it, and count anew, while engines go on.

        Returns:
            What was counted, and the requests that the servers may have in flight together.
        """
        self._loads = loads = await self._lives.ask_all("turn_over")
        self._balance.close(loads)
        stats = await self.take_stats()
        self._deliver(self._balance.open(loads))
        return stats, self._balance.capacity

    async def take_stats(self) -> RollingStats:
        updates_s, self._updates_s = tuple(self._updates_s), []
        versions = [version for version in (await self.versions()).values() if version >= 0]
        behind = max((self._updates.newest_version - version for version in versions), default=0)
        stats = await super().take_stats()
        counted = {one.name: getattr(stats, one.name) for one in fields(stats)}
        return RollingStats(**counted, versions_behind=behind, updates_s=updates_s)

    def _forget(self, server_id: str) -> None:
        super()._forget(server_id)
        self._updates.leave(server_id)
        self._workers.pop(server_id, None)
        self._closed_s.pop(server_id, None)
        update = self._running.pop(server_id, None)
        if update is not None and update is not asyncio.current_task():
            update.cancel()  # its workers may hang
        self._note_update()

    def _take_back(self, returned: Returned) -> None:
        server_id = self._table.server_of(returned.lease_id)
        super()._take_back(returned)
        if server_id is None or self._table.inflight_on(server_id):
            return
        if self._updates.phase_of(server_id) is Phase.DRAINING:
            self._move()

    def _serving(self) -> set[str]:
        """Servers that are not being updated."""
        return {key for key in self._lives.alive if self._updates.phase_of(key) is not Phase.UPDATING}

    # ---- updates ----

    def _move(self) -> None:
        for server_id, phase in self._updates.moves(self._table.inflight, is_stopped=not self._is_open).items():
            self._close(server_id)
            if phase is Phase.UPDATING:
                self._begin_update(server_id)
        self._tell_versions()

    def _close(self, server_id: str) -> None:
        self._table.close(server_id)
        self._closed_s.setdefault(server_id, time.monotonic())

    def _begin_update(self, server_id: str) -> None:
        self._generating.discard(server_id)
        self._running[server_id] = asyncio.create_task(self._update(server_id), name=f"update {server_id}")

    async def _update(self, server_id: str) -> None:
        """An engine that cannot be updated is ended, and the others go on."""
        try:
            await self._bring_up_to_date(server_id)
        except TimeoutError:
            limit = f"async_dapo.engine_timeout_s={self._engine_timeout_s:g}"
            self._lives.lose(server_id, f"has not taken a bucket of new weights within {limit}")
        except RayError as error:
            # Of the traceback that an error from another process brings, the last line says most.
            what = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            self._lives.lose(server_id, f"has not taken new weights: {what}")

    async def _bring_up_to_date(self, server_id: str) -> None:
        """Bring an engine the newest weights, and those that have become so meanwhile."""
        is_behind = True
        while is_behind:
            await self._lives.ask(server_id, "stop_generation", self._rolling["pause_mode"])
            if server_id not in self._lives.alive:
                return
            version, buckets = self._updates.take_newest(server_id), self._buckets
            await self._bring(server_id, version, buckets)
            await self._let_go_on(server_id)
            phase = self._updates.updated(server_id)
            if phase is None:
                return
            is_behind = phase is Phase.UPDATING
            if is_behind:
                self._generating.discard(server_id)
        self._updates_s.append(time.monotonic() - self._closed_s.pop(server_id))
        del self._running[server_id]
        self._deliver(self._table.reopen(server_id))
        self._note_update()

    async def _bring(self, server_id: str, version: int, buckets: Sequence[ObjectRef]) -> None:
        """
        Raises:
            TimeoutError: when no bucket has been taken within the engine's time limit.
        """
        try:
            async with asyncio.timeout(self._engine_timeout_s) as self._limits[server_id]:
                await await_all(worker.take_weights.remote(version, buckets) for worker in self._workers[server_id])
        finally:
            self._limits.pop(server_id, None)

    async def _let_go_on(self, server_id: str) -> None:
        """Unless generation has been stopped, for all; that may happen meanwhile, and end again."""
        while self._is_open and server_id in self._lives.alive and server_id not in self._generating:
            self._generating.add(server_id)
            knows = self._balance.controller.knows(server_id)
            load = await self._lives.ask(server_id, "go_on" if knows else "allow_generation")
            if server_id not in self._generating:
                await self._lives.ask(server_id, "stop_generation")
            elif not knows and server_id in self._lives.alive:
                self._deliver(self._balance.join(server_id, load))

    def _note_update(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self._move()

    def _tell_versions(self) -> None:
        if self._coordinator is not None:
            oldest, newest = self._updates.oldest_version, self._updates.newest_version
            self._coordinator.note_versions.remote(oldest, newest)


# What `router_class` names: verl calls `.remote(servers, options)` on it.
RollingLoadBalancerActor = ray.remote(num_cpus=0, max_concurrency=MAX_PENDING_CALLS)(RollingLoadBalancer)
