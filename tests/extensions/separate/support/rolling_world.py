"""Engines that get weights one by one behind their load balancer, and requests that go to them."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo.core.trajectory import Turn
from recipe.async_dapo.engines.engine_requests import EngineRequests
from recipe.async_dapo.extensions.separate.balancer import RollingLoadBalancer
from recipe.async_dapo.extensions.separate.rolling_update import Phase

from ....support.fakes import FakeHandle, ScriptedServer, token_at
from ....support.router import router_options
from ....support.simulation import settle
from .separate_cluster import WeightTaker

LATENCY_S = 0.01
PLACES = 4


class NotedVersions:
    """The coordinator, as far as the load balancer knows it."""

    def __init__(self) -> None:
        self.versions: list[tuple[int, int]] = []

    async def note_versions(self, oldest: int, newest: int) -> None:
        self.versions.append((oldest, newest))


class RollingWorld:
    """
    Args:
        names: of the engines.
        max_lag: as of `RollingUpdate`.
        transfer_s: of weights to an engine [s].
        latency_s: of calls.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        strategy: RolloutStrategy,
        names: Iterable[str] = "abc",
        *,
        max_lag: int | None = None,
        transfer_s: float = 2.0,
        latency_s: float | Callable[[str], float] = LATENCY_S,
    ) -> None:
        self.strategy = strategy
        self._transfer_s, self._latency_s = transfer_s, latency_s
        rolling = {
            "drains": strategy is RolloutStrategy.CONSISTENT,
            "max_lag": max_lag,
            "pause_mode": "hold" if strategy is RolloutStrategy.PARTIAL_STALE_KV else "abort",
        }
        options = router_options(PLACES, engine_timeout_s=600.0, rolling=rolling)
        self.servers: dict[str, ScriptedServer] = {}
        self.handles: dict[str, FakeHandle] = {}
        self.takers: dict[str, WeightTaker] = {}
        for name in names:
            self._make(name)
        self.balancer = RollingLoadBalancer(self.handles, options)
        self.handle = FakeHandle(self.balancer, latency_s=latency_s)
        self.coordinator = NotedVersions()
        self.requests = EngineRequests(self.handle, cleanup_timeout_s=60.0, rolling=True)

    async def begin(self) -> None:
        """All engines have version 0, and generate."""
        await self.balancer.report_versions_to(FakeHandle(self.coordinator))
        await self.publish(0)
        await self.balancer.enroll({name: [FakeHandle(taker)] for name, taker in self.takers.items()})
        await self.balancer.caught_up()
        await self.balancer.open()

    async def publish(self, version: int) -> None:
        await self.balancer.publish(version, [f"weights {version}"])

    async def join(self, name: str, **about: Any) -> None:
        self._make(name, **about)
        await self.balancer.join(name, self.handles[name], [FakeHandle(self.takers[name])])

    async def end(self, name: str, how: str) -> None:
        """An engine dies, does not answer any more, or cannot take the next weights."""
        match how:
            case "die":
                self.handles[name].kill()
            case "silent":
                self.handles[name].cut_off(100_000.0)
            case "fails":
                self.takers[name].fails = RuntimeError("broken")
            case "hangs":
                self.takers[name].hangs = True
        if how in ("die", "silent"):
            await self.balancer.look_after_servers()

    def phase(self, name: str) -> Phase | None:
        return self.balancer._updates.phase_of(name)

    async def answer(self, number: int, *, length_tok: int = 6) -> Turn:
        """One response, however many requests it takes."""
        prompt = [number]
        turn = Turn(prompt_digest=b"", prompt_len_tok=1)
        while turn.finish_reason is None:
            params = {"max_tokens": length_tok - turn.generated_tok, "logprobs": True}
            context = prompt + turn.raw_response_ids
            if not await self.requests.advance(turn, f"trajectory-{number}", context, params, {}):
                await asyncio.sleep(1.0)  # until the next round
                continue
            if turn.generated_tok and turn.finish_reason is None and self.strategy is RolloutStrategy.CONSISTENT:
                turn.segments = []
        assert turn.raw_response_ids == [token_at(prompt, k) for k in range(length_tok)]
        versions = {segment.policy_version for segment in turn.segments}
        assert len(versions) == 1 or self.strategy is not RolloutStrategy.CONSISTENT
        return turn

    async def answers(self, numbers: Iterable[int], **about: Any) -> list[Turn]:
        return [await self.answer(number, **about) for number in numbers]

    async def look(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(0.25)
            table = self.balancer._table
            placed = table._by_load.servers
            for name, server in placed.items():
                assert not (table.num_queued and server.has_capacity), f"{name} has a place, and requests wait"

    async def is_well(self, newest: int) -> None:
        """Everything has ended, and all engines that are left serve under the newest weights."""
        await self.balancer.caught_up()
        await asyncio.sleep(10)
        names = list((await self.balancer.get_status())["registered_handles"])
        assert names, "no engine is left"
        assert all(taker.is_well_asked for taker in self.takers.values())
        assert await self.balancer.versions() == dict.fromkeys(names, newest)
        for name in names:
            server = self.servers[name]
            assert self.phase(name) is Phase.SERVING and server.global_steps == newest
            assert not server.is_stopped and server._decodes.is_set()
            assert not self.balancer._table._by_load.servers[name].is_closed
        status = await self.balancer.get_status()
        assert (status["total_inflight"], status["queued"]) == (0, 0)
        assert not self.balancer._running
        assert self.coordinator.versions[-1] == (newest, newest)
        await settle()

    def _make(self, name: str, **about: Any) -> None:
        length_of = about.pop("length_of", lambda prompt: 10_000)  # as long as is asked
        self.servers[name] = ScriptedServer(length_of, delivery_tok=4, **about)
        self.handles[name] = FakeHandle(self.servers[name], latency_s=self._latency_s)
        self.takers[name] = WeightTaker(self.handles[name], transfer_s=self._transfer_s, strategy=self.strategy)
