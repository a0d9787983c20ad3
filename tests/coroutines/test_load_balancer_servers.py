"""The load balancer's servers: stopped, opened, added, removed and dying at any time."""

import asyncio

import pytest

from benchmarks.support.router import router_options
from recipe.async_dapo.engines import server as server_module
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancer
from recipe.async_dapo.engines.server_actor import ServerActor

from ..support.balancer_world import acquire, balancer, handles, is_quiet, release
from ..support.fakes import FakeHandle, ScriptedServer
from ..support.scripted_engine import ScriptedEngine, start_server
from ..support.simulation import at_each, now_s, settle


async def test_given_a_stop_when_servers_take_different_times_then_it_returns_with_the_slowest_and_nothing_is_granted():
    slow = {"a": FakeHandle(ScriptedServer(), latency_s=1), "b": FakeHandle(ScriptedServer(), latency_s=4)}
    lb = GlobalLoadBalancer(slow, router_options(1))
    await lb.stop()
    assert now_s() == pytest.approx(8)
    assert await lb.lease("request", "request") is None
    await lb.open()
    assert await lb.lease("request", "request") is not None
    await release(lb, "request")
    await is_quiet(lb)


@at_each((0.0, 0.5, 1.0, 1.5))
async def test_given_a_stop_when_a_server_is_dead_or_dies_then_the_others_are_stopped_and_it_leaves_the_pool(
    death_s: float,
):
    servers = handles("abc", latency_s=1)
    lb = GlobalLoadBalancer(servers, router_options(1))
    held = [await lb.lease("request", f"lease-{k}") for k in range(3)]
    asyncio.get_running_loop().call_at(death_s, servers["b"].kill)
    await settle()
    await lb.stop()
    assert (await lb.get_status())["registered_handles"] == ["a", "c"]
    assert servers["a"].target.is_stopped and servers["c"].target.is_stopped
    assert (await lb.get_status())["total_inflight"] == 2
    for k in range(len(held)):
        await release(lb, f"lease-{k}")
    await is_quiet(lb)


@pytest.mark.parametrize("pause_mode", ["abort", "keep"])
@at_each((0.0, 0.5, 1.0, 1.5))
async def test_given_a_server_that_cannot_be_reached_when_stopped_then_it_is_told_again_and_stays(
    pause_mode, cut_s: float
):
    servers = handles("abc", latency_s=1)
    lb = GlobalLoadBalancer(servers, router_options(1, pause_mode=pause_mode))
    asyncio.get_running_loop().call_at(cut_s, servers["b"].cut_off, 5)
    await settle()
    await lb.stop()
    assert all(handle.target.is_stopped for handle in servers.values())
    assert now_s() == pytest.approx(cut_s + 5, abs=3)
    await lb.open()
    assert (await lb.get_status())["registered_handles"] == ["a", "b", "c"]
    assert not any(handle.target.is_stopped for handle in servers.values())
    await is_quiet(lb)


@pytest.mark.parametrize("dies_at", ["stop", "open"])
async def test_given_an_engine_that_knows_that_it_is_dead_before_its_processes_end_then_its_server_leaves_the_pool(
    monkeypatch, dies_at: str
) -> None:
    engines, servers = [ScriptedEngine(9), ScriptedEngine(9)], {}
    for name, engine in zip("ab", engines, strict=True):
        actor = object.__new__(ServerActor)
        actor._server = start_server(monkeypatch, engine)
        servers[name] = FakeHandle(actor)

    def end(dead: str) -> None:
        servers["b"].kill()
        raise SystemError(f"the process of {dead} ends")

    monkeypatch.setattr(server_module, "_end", end)
    lb = GlobalLoadBalancer(servers, router_options(1, pause_mode="keep"))
    for call in ("stop", "open"):
        if call == dies_at:
            engines[1].die()
        await getattr(lb, call)()
    assert (await lb.get_status())["registered_handles"] == ["a"]


async def test_given_a_stop_when_a_client_reports_a_server_dead_at_the_same_time_then_the_stop_still_returns() -> None:
    lb = balancer("abc")
    stop = asyncio.create_task(lb.stop())
    report = asyncio.create_task(lb.remove_servers(["b"]))
    await report
    await stop
    assert (await lb.get_status())["registered_handles"] == ["a", "c"]
    await is_quiet(lb)


async def test_given_waiters_when_the_last_server_goes_then_each_gets_an_error() -> None:
    lb = balancer("a")
    await lb.lease("request", "holder")
    waiters = [acquire(lb, f"lease-{k}") for k in range(3)]
    await settle()
    await lb.remove_servers(["a"])
    for waiter in waiters:
        with pytest.raises(RuntimeError, match="No available servers"):
            await waiter
    with pytest.raises(RuntimeError, match="No available servers"):
        await lb.lease("request", "request")
    await release(lb, "holder")
    await is_quiet(lb)


@pytest.mark.parametrize("is_open", [True, False])
async def test_given_waiters_when_a_server_is_added_then_it_serves_them_unless_the_round_has_stopped(is_open: bool):
    lb = balancer("a")
    await lb.lease("request", "holder")
    waiter = acquire(lb, "lease")
    await settle()
    if not is_open:
        await lb.stop()
    added = handles("b")
    if is_open:
        await added["b"].stop_generation.remote()
    await lb.add_servers(added)
    assert added["b"].target.is_stopped == (not is_open)
    assert (await waiter is not None) == is_open
    await release(lb, "lease", "holder")
    await is_quiet(lb)


async def test_given_a_server_that_dies_while_it_is_added_then_nobody_is_sent_to_it() -> None:
    lb = balancer("a")
    await lb.stop()
    added = handles("b", latency_s=1)
    asyncio.get_running_loop().call_at(0.5, added["b"].kill)
    await lb.add_servers(added)
    assert (await lb.get_status())["registered_handles"] == ["a"]
    await lb.open()
    assert [await lb.lease("request", f"lease-{k}") for k in range(1)] != [None]
    waiter = acquire(lb, "lease-1")
    await settle()
    assert not waiter.done()
    await release(lb, "lease-0", "lease-1")
    await is_quiet(lb)


async def test_given_leases_on_a_server_when_it_goes_then_nobody_waits_for_them() -> None:
    lb = balancer("ab")
    for k in range(2):
        await lb.lease("request", f"lease-{k}")
    waiting = asyncio.create_task(lb.all_returned([]))
    await settle()
    await release(lb, "lease-0")
    await settle()
    await lb.remove_servers(["a", "b"])
    async with asyncio.timeout(1):
        await waiting
