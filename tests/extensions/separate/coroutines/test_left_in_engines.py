"""The same of engines that get weights one by one: no request is left in a server, no lease out."""

import asyncio
from random import Random
from typing import Any

import pytest

from recipe.async_dapo.extensions.separate.balancer import RollingLoadBalancer
from recipe.async_dapo.extensions.separate.holding_server import HoldingServer

from ....support.fakes import FakeHandle
from ....support.left_in_engines import NAMES, SEEDS, World, live
from ....support.router import router_options


class _WeightTaker:
    """Brings a server weights, in a second."""

    def __init__(self, server: Any) -> None:
        self._server = server

    async def take_weights(self, version: int, buckets: list[str]) -> None:
        await asyncio.sleep(1.0)
        await self._server.set_global_steps(version)


class _RollingWorld(World):
    stops_for_weights = False
    server_class = HoldingServer
    balancer: RollingLoadBalancer

    def __init__(self, monkeypatch: pytest.MonkeyPatch, random: Random, pause_mode: str) -> None:
        self.pause_mode = pause_mode
        super().__init__(monkeypatch, random)

    def _make_balancer(self) -> RollingLoadBalancer:
        rolling = {"drains": False, "max_lag": None, "pause_mode": self.pause_mode}
        return RollingLoadBalancer(self.handles, router_options(3, rolling=rolling))

    async def begin(self) -> None:
        await self.balancer.publish(0, [])
        await self.balancer.enroll({name: [FakeHandle(_WeightTaker(self.servers[name]))] for name in NAMES})
        await self.balancer.caught_up()
        await super().begin()

    async def new_weights(self) -> None:
        self.version += 1
        await self.balancer.publish(self.version, [])


@pytest.mark.parametrize("pause_mode", ["abort", "hold"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_given_any_order_of_events_then_no_request_is_left_in_a_server_and_no_lease_is_out(
    monkeypatch, seed, pause_mode
) -> None:
    random = Random(seed)
    await live(_RollingWorld(monkeypatch, random, pause_mode), random)
