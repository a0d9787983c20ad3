"""Whatever is cancelled, paused, resumed, updated or dies, in any order: no request is left in a server, no lease out.

Our server with vLLM's output processor, behind both load balancers; only the engine's core is scripted.
"""

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from recipe.async_dapo.calls import Recorder, current_recorder
from recipe.async_dapo.core.trajectory import Trajectory
from recipe.async_dapo.engines import load_balancer
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancer
from recipe.async_dapo.separate.balancer import RollingLoadBalancer

from ..support.client_world import CLEANUP_TIMEOUT_S, llm_client
from ..support.fakes import FakeHandle
from ..support.router import router_options
from ..support.scripted_engine import ScriptedEngine, start_server

NAMES = "abc"
SEEDS = [pytest.param(seed, marks=() if seed in (5, 7, 10, 11) else pytest.mark.nightly) for seed in range(100)]
KINDS = [("abort", False), ("keep", False), ("abort", True), ("hold", True)]  # what a pause does, weights one by one


class _WeightTaker:
    """Brings a server weights, in a second."""

    def __init__(self, server: Any) -> None:
        self._server = server

    async def take_weights(self, version: int, buckets: list[str]) -> None:
        await asyncio.sleep(1.0)
        await self._server.set_global_steps(version)


class _World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, random: Random, pause_mode: str, *, is_rolling: bool) -> None:
        monkeypatch.setattr(load_balancer, "ray", SimpleNamespace(kill=FakeHandle.kill))
        latency_s = random.choice([0.01, 0.25, lambda method: random.choice([0.0, 0.3, random.uniform(0, 3)])])
        self.engines = {name: ScriptedEngine(random.randint(8, 30)) for name in NAMES}
        self.servers = {
            name: start_server(monkeypatch, engine, delivery_tok=random.choice([1, 4, 100]))
            for name, engine in self.engines.items()
        }
        self.handles = {name: FakeHandle(server, latency_s=latency_s) for name, server in self.servers.items()}
        self.is_rolling = is_rolling
        self.version = 0
        options = router_options(3, pause_mode=pause_mode)
        if is_rolling:
            rolling = {"drains": False, "max_lag": None, "pause_mode": pause_mode}
            options |= {"pause_mode": "keep" if pause_mode == "hold" else "abort", "rolling": rolling}
        self.balancer = (RollingLoadBalancer if is_rolling else GlobalLoadBalancer)(self.handles, options)
        handle = FakeHandle(self.balancer, latency_s=latency_s)
        self.client = llm_client(handle, continues=pause_mode == "abort", rolling=is_rolling)

    async def begin(self) -> None:
        if self.is_rolling:
            await self.balancer.publish(0, [])
            await self.balancer.enroll({name: [FakeHandle(_WeightTaker(self.servers[name]))] for name in NAMES})
            await self.balancer.caught_up()
        await self.balancer.open()

    async def new_weights(self) -> None:
        self.version += 1
        if self.is_rolling:
            await self.balancer.publish(self.version, [])
        for server in () if self.is_rolling else self.servers.values():
            await server.set_global_steps(self.version)

    async def alive(self) -> list[str]:
        names: list[str] = (await self.balancer.get_status())["registered_handles"]
        return names

    async def kill(self, name: str) -> None:
        self.handles[name].kill()
        await self.servers[name].stop_generation("abort")  # what it is at ends with its process
        await self.engines[name].resume_generation()
        await self.balancer.look_after_servers()

    async def trajectory(self, number: int) -> None:
        """Over as many rounds as it takes; a cancelled one is given up, as one of a group that has failed is."""
        trajectory = Trajectory(session_id=0)
        try:
            while True:
                current_recorder.set(recorder := Recorder(trajectory=trajectory))
                try:
                    await self.client.generate(f"request-{number}", prompt_ids=[number], sampling_params={})
                    return
                except asyncio.CancelledError:
                    if not recorder.rests:
                        raise
                await asyncio.sleep(0.5)  # until the next round
        finally:
            self.client.abandon([turn.attachment for turn in trajectory.turns if turn.attachment is not None])

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


@pytest.mark.parametrize(("pause_mode", "is_rolling"), KINDS)
@pytest.mark.parametrize("seed", SEEDS)
async def test_given_any_order_of_events_then_no_request_is_left_in_a_server_and_no_lease_is_out(
    monkeypatch, seed, pause_mode, is_rolling
) -> None:
    random = Random(seed)
    it = _World(monkeypatch, random, pause_mode, is_rolling=is_rolling)
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
            case "weights" if is_rolling:
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
