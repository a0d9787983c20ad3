"""The load balancer actor as a plain class: waiters, stops, and servers that leave, die or cannot be reached."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from recipe.async_dapo.core.leases import Requested, Returned
from recipe.async_dapo.engines import started_server
from recipe.async_dapo.engines.lives import EngineLives
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancer
from recipe.async_dapo.engines.server_actor import ServerActor

from ..support.client_world import LENGTH_TOK, assert_whole, world
from ..support.fakes import FakeHandle, ScriptedServer, token_at
from ..support.router import router_options
from ..support.scripted_engine import ScriptedEngine, start_server
from ..support.simulation import at_each, settle


def handles(names: Iterable[str], **options: Any) -> dict[str, FakeHandle]:
    return {name: FakeHandle(ScriptedServer(), **options) for name in names}


async def lease(lb: GlobalLoadBalancer, lease_id: str) -> Any:
    """A server, waiting for one if need be."""
    decided = await lb.exchange([Requested(lease_id=lease_id, request_id="request")], [])
    return decided[lease_id] if lease_id in decided else await lb.granted(lease_id)


def acquire(lb: GlobalLoadBalancer, lease_id: str) -> asyncio.Task[Any]:
    return asyncio.create_task(lease(lb, lease_id))


async def release(lb: GlobalLoadBalancer, lease_id: str) -> None:
    await lb.exchange([], [Returned(lease_id=lease_id)])


class Operated:
    """A load balancer with a capacity of two a server, whose users and operators do as chance has it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.names = [f"lease-{k}" for k in range(40)]
        latency_s = random.choice([0.0, 1.0, lambda method: random.choice([0.0, 0.3, random.uniform(0, 3)])])
        self.servers = handles("abcd", latency_s=latency_s)
        self.balancer = GlobalLoadBalancer(self.servers, router_options(2))

    @property
    async def registered(self) -> list[FakeHandle]:
        """Those that are alive."""
        names = (await self.balancer.get_status())["registered_handles"]
        return [self.servers[name] for name in names if not self.servers[name].is_dead]

    async def use(self, name: str) -> None:
        await asyncio.sleep(self.random.uniform(0, 20))
        status = await self.balancer.get_status()
        has_ended = status["is_open"] and not status["registered_handles"]
        call = acquire(self.balancer, name)
        if self.random.random() < 0.3:
            await asyncio.sleep(self.random.uniform(0, 3))
            call.cancel()
        await asyncio.wait([call])
        if not call.cancelled() and (has_ended or call.exception()):
            assert "No available servers" in str(call.exception())
        assert all(inflight <= 2 for inflight in (await self.balancer.get_status())["servers"].values())

    async def release_sometime(self, name: str) -> None:
        await asyncio.sleep(self.random.uniform(0, 30))
        await release(self.balancer, name)

    async def stop_and_open(self) -> None:
        for number in range(4):
            await asyncio.sleep(self.random.uniform(0, 5))
            await self.balancer.stop()
            assert all(handle.target.is_stopped for handle in await self.registered)
            if await self.registered:
                assert await lease(self.balancer, f"late-{number}") is None
                await release(self.balancer, f"late-{number}")
            await asyncio.sleep(self.random.uniform(0, 3))
            with suppress(RuntimeError):
                await self.balancer.open()
            assert (await self.balancer.get_status())["is_open"] or not await self.registered
            assert not any(handle.target.is_stopped for handle in await self.registered)

    async def wait_for_returns(self) -> None:
        """Of all leases, again and again."""
        for _ in range(10):
            await asyncio.sleep(self.random.uniform(0, 6))
            await self.balancer.all_returned()
            assert not self.balancer._table.held_lease_ids

    async def lose_servers(self) -> None:
        for _ in range(6):
            await asyncio.sleep(self.random.uniform(0, 3))
            name = self.random.choice("abcd")
            match self.random.choice(["remove", "die", "cut", "cut", "cut"]):
                case "remove":
                    self.balancer._lives.lose(name, "leaves")
                case "die":
                    self.servers[name].kill()
                case "cut":
                    self.servers[name].cut_off(self.random.choice([0.5, 5.0]))
        if self.random.random() < 0.3:
            await self.lose_all()

    async def lose_all(self) -> None:
        """Nobody waits any more for a lease, or for those that were out."""
        waiting = asyncio.create_task(self.balancer.all_returned())
        await settle()
        for name in "abcd":
            self.balancer._lives.lose(name, "leaves")
        await settle()
        assert waiting.done() and not self.balancer._waiters


@at_each(range(60))
async def test_given_anything_at_any_time_when_all_is_released_then_nothing_leaks_and_capacity_held(
    number: int,
) -> None:
    """Requests, cancellations, releases in any order, stops, and all that may become of servers, at random times."""
    it = Operated(Random(number))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(it.stop_and_open())
        tasks.create_task(it.lose_servers())
        tasks.create_task(it.wait_for_returns())
        for name in it.names:
            tasks.create_task(it.use(name))
            tasks.create_task(it.release_sometime(name))
    await it.balancer.look_after_servers()
    await settle()
    status = await it.balancer.get_status()
    assert (status["total_inflight"], status["queued"]) == (0, 0) and not it.balancer._waiters
    assert len(await it.registered) == len(status["registered_handles"]), "a dead one is left"


async def test_statistics_are_since_they_were_taken_without_voided_waiters_and_the_time_between_rounds(monkeypatch):
    monkeypatch.setattr("recipe.async_dapo.engines.load_balancer.time.monotonic", asyncio.get_running_loop().time)
    lb = GlobalLoadBalancer(handles("a"), router_options(1))
    await lease(lb, "first")
    late, voided = acquire(lb, "late"), acquire(lb, "voided")
    await asyncio.sleep(3)
    await release(lb, "first")
    await late
    await asyncio.sleep(1)
    await lb.stop()
    assert await voided is None
    stats = await lb.take_stats()
    assert (stats.acquired, stats.inflight_max, stats.busy_s) == (2, 1, pytest.approx(4))
    await asyncio.sleep(100)  # a lease that comes back late keeps its place while the trainer trains
    await lb.open()
    await asyncio.sleep(2)
    stats = await lb.take_stats()
    assert (stats.acquired, stats.inflight_max, stats.busy_s) == (0, 1, pytest.approx(2))
    await release(lb, "late")
    await lb.take_stats()
    assert (await lb.take_stats()).inflight_max == 0


async def test_given_an_engine_that_knows_that_it_is_dead_before_its_processes_end_then_its_server_leaves_the_pool(
    monkeypatch,
) -> None:
    engines, servers = [ScriptedEngine(9), ScriptedEngine(9)], {}
    for name, engine in zip("ab", engines, strict=True):
        actor = object.__new__(ServerActor)
        actor._server = start_server(monkeypatch, engine)
        servers[name] = FakeHandle(actor)

    def end(dead: str) -> None:
        servers["b"].kill()
        raise SystemError(f"the process of {dead} ends")

    monkeypatch.setattr(started_server, "_end", end)
    lb = GlobalLoadBalancer(servers, router_options(1))
    engines[1].die()
    await lb.look_after_servers()
    assert (await lb.get_status())["registered_handles"] == ["a"]


async def test_given_an_engine_of_two_nodes_when_one_s_server_dies_while_nothing_is_asked_then_the_engine_is_lost():
    engines, second_node = handles("ab"), FakeHandle(ScriptedServer())
    lb = GlobalLoadBalancer(engines, router_options(1))
    await lb.watch("a", "engine 0", [engines["a"], second_node])
    second_node.cut_off(0.5)
    await asyncio.sleep(10)
    assert await lb.lost_engines() == {}
    second_node.kill()
    await settle()
    lost = await lb.lost_engines()
    assert list(lost) == ["a"] and lost["a"].startswith("engine 0 died: ") and engines["a"].is_dead


async def test_given_a_run_that_is_over_when_its_engines_end_then_none_of_them_counts_as_lost():
    """The last lines of a good run were deaths of its engines."""
    engines = handles("ab")
    lb = GlobalLoadBalancer(engines, router_options(1))
    for name, engine in engines.items():
        await lb.watch(name, f"engine {name}", [engine])
    await settle()
    await lb.end()
    for engine in engines.values():
        engine.kill()
    await settle()
    assert await lb.lost_engines() == {}


async def test_given_an_agent_loop_that_generates_twice_in_parallel_under_one_id_then_both_answers_are_whole() -> None:
    it = world()
    first = it.generate()
    second = it.client.generate("request", prompt_ids=[8], sampling_params={"logprobs": True})
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(first), tasks.create_task(second)]
    assert_whole(calls[0].result())
    assert calls[1].result().token_ids == [token_at([8], k) for k in range(LENGTH_TOK)]
    await it.is_quiet()


def test_given_an_engine_at_the_address_of_a_lost_one_when_it_joins_then_it_lives_and_the_lost_one_still_counts():
    lives = EngineLives({}, timeout_s=1.0, on_lost=lambda address: None)
    lives.explain("10.0.0.1:5", "died: killed")
    lives.join("10.0.0.1:5", FakeHandle(None))
    assert list(lives.alive) == ["10.0.0.1:5"] and "10.0.0.1:5" not in lives.lost
    assert list(lives.lost.values()) == ["10.0.0.1:5 died: killed"]
