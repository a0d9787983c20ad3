"""Whatever is cancelled, paused, resumed, updated or dies, in any order: no request is left in a server, no lease out.

Our server with vLLM's output processor, behind a load balancer; only the engine's core is scripted.
"""

import asyncio
from random import Random
from types import SimpleNamespace

import pytest

from recipe.async_dapo.core.trajectory import Trajectory
from recipe.async_dapo.engines import load_balancer
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancer
from recipe.async_dapo.engines.server import AsyncDAPOServer
from recipe.async_dapo.recording import TrajectoryRecorder, current_recorder

from .client_world import CLEANUP_TIMEOUT_S, llm_client
from .fakes import FakeHandle
from .router import router_options
from .scripted_engine import ScriptedEngine, start_server

NAMES = "abc"
SEEDS = [pytest.param(seed, marks=() if seed in (5, 7, 10, 11) else pytest.mark.nightly) for seed in range(100)]


class World:
    """Engines behind a load balancer, and trajectories that are cancelled and resumed round after round."""

    stops_for_weights = True
    server_class = AsyncDAPOServer

    def __init__(self, monkeypatch: pytest.MonkeyPatch, random: Random) -> None:
        monkeypatch.setattr(load_balancer, "ray", SimpleNamespace(kill=FakeHandle.kill))
        latency_s = random.choice([0.01, 0.25, lambda method: random.choice([0.0, 0.3, random.uniform(0, 3)])])
        self.engines = {name: ScriptedEngine(random.randint(8, 30)) for name in NAMES}
        self.servers = {
            name: start_server(monkeypatch, engine, self.server_class, delivery_tok=random.choice([1, 4, 100]))
            for name, engine in self.engines.items()
        }
        self.handles = {name: FakeHandle(server, latency_s=latency_s) for name, server in self.servers.items()}
        self.version = 0
        self.balancer = self._make_balancer()
        handle = FakeHandle(self.balancer, latency_s=latency_s)
        self.client = llm_client(handle, continues=True, rolling=not self.stops_for_weights)

    def _make_balancer(self) -> GlobalLoadBalancer:
        return GlobalLoadBalancer(self.handles, router_options(3))

    async def begin(self) -> None:
        await self.balancer.open()

    async def new_weights(self) -> None:
        self.version += 1
        for server in self.servers.values():
            await server.set_global_steps(self.version)

    async def alive(self) -> list[str]:
        names: list[str] = (await self.balancer.get_status())["registered_handles"]
        return names

    async def kill(self, name: str) -> None:
        self.handles[name].kill()
        await self.servers[name].stop_generation()  # what it is at ends with its process
        await self.engines[name].resume_generation()
        await self.balancer.look_after_servers()

    async def trajectory(self, number: int) -> None:
        """Over as many rounds as it takes; a cancelled one is given up, as one of a group that has failed is."""
        trajectory = Trajectory(session_id=0)
        while True:
            current_recorder.set(recorder := TrajectoryRecorder(trajectory=trajectory))
            try:
                await self.client.generate(f"request-{number}", prompt_ids=[number], sampling_params={})
                return
            except asyncio.CancelledError:
                if not recorder.rests:
                    raise
            await asyncio.sleep(0.5)  # until the next round

    async def check_leases(self) -> None:
        held = self.balancer._table.held_lease_ids
        for name in await self.alive():
            begun = {one.request_id for one in self.servers[name]._requests.running() if one.has_begun}
            assert begun <= held or self.handles[name].is_dead, "a lease came back before its request was out"

    async def assert_nothing_is_left(self) -> None:
        await asyncio.sleep(200 + CLEANUP_TIMEOUT_S)
        status = await self.balancer.get_status()
        assert (status["total_inflight"], status["queued"]) == (0, 0) and not self.balancer._waiters
        for name in await self.alive():
            assert not self.servers[name]._requests._requests, "an entry stays in the table of its server"
            assert not self.engines[name].core and not self.engines[name].output_processor.request_states


async def live(it: World, random: Random) -> None:
    """Any order of events: then no request is left in a server, and no lease is out."""
    await it.begin()
    tasks = [asyncio.create_task(it.trajectory(number)) for number in range(8)]
    for number in range(8, 40):
        match random.choice(["cancel", "cancel", "begin", "begin", "pause", "pause", "weights", "die", "cut"]):
            case "cancel":
                random.choice(tasks).cancel()
            case "begin":
                tasks.append(asyncio.create_task(it.trajectory(number)))
            case "pause":
                for task in random.sample(tasks, 3):
                    asyncio.get_running_loop().call_later(random.choice([0.0, 0.1, 1.0]), task.cancel)
                await it.balancer.stop()
                await asyncio.sleep(random.choice([0.0, 1.0, 10.0]))
                await it.balancer.open()
            case "weights" if not it.stops_for_weights:
                await it.new_weights()
            case "weights":
                await it.balancer.stop()
                await it.new_weights()
                await it.balancer.open()
            case "die" if len(alive := await it.alive()) > 1:
                await it.kill(random.choice(alive))
            case "cut":
                it.handles[random.choice(await it.alive())].cut_off(random.choice([0.1, 3.0]))
        await asyncio.sleep(random.choice([0.0, 0.1, 0.7, 3.0]))
        await it.check_leases()
    async with asyncio.timeout(2000):
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends), ends
    await it.assert_nothing_is_left()
