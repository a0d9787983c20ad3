"""The load balancer actor as a plain class: waiters, stops, servers that come, go and die."""

import asyncio
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from recipe.async_dapo.load_balancer import GlobalLoadBalancer

from .fakes import FakeHandle, ScriptedServer
from .simulation import Suspensions, now_s, settle, simulate


def handles(names: Iterable[str], **options: Any) -> dict[str, FakeHandle]:
    return {name: FakeHandle(ScriptedServer(), **options) for name in names}


def balancer(names: Iterable[str] = "ab", *, capacity: int = 1, **options: Any) -> GlobalLoadBalancer:
    return GlobalLoadBalancer(handles(names), {"max_loads_per_server": capacity, **options})


async def release(lb: GlobalLoadBalancer, *lease_ids: str) -> None:
    for lease_id in lease_ids:
        await lb.release_server("", None, lease_id)


def acquire(lb: GlobalLoadBalancer, lease_id: str) -> asyncio.Task[Any]:
    return asyncio.create_task(lb.acquire_server("request", lease_id))


async def is_quiet(lb: GlobalLoadBalancer) -> None:
    await settle()
    status = await lb.get_status()
    assert (status["total_inflight"], status["waiting"]) == (0, 0)
    assert not lb._waiters


def test_given_waiters_when_leases_come_back_then_they_are_served_in_order() -> None:
    async def main() -> None:
        lb = balancer()
        served: list[int] = []

        async def use(k: int) -> None:
            await lb.acquire_server(f"request-{k}", f"lease-{k}")
            served.append(k)
            await asyncio.sleep(1)
            await release(lb, f"lease-{k}")

        async with asyncio.TaskGroup() as tasks:
            for k in range(20):
                tasks.create_task(use(k))
        assert served == list(range(20))
        assert now_s() == pytest.approx(10)  # two at a time: no slot was ever idle
        await is_quiet(lb)

    simulate(main())


def test_given_4096_waiters_when_a_lease_is_released_then_the_next_one_has_it_at_once() -> None:
    async def main() -> None:
        lb = balancer()
        waiters = [acquire(lb, f"lease-{k}") for k in range(4098)]
        await settle()
        assert [waiter.done() for waiter in waiters[:3]] == [True, True, False]
        before_s = now_s()
        await release(lb, "lease-0")
        assert await waiters[2] is not None
        assert now_s() == before_s
        await lb.stop()
        assert [await waiter for waiter in waiters[3:]] == [None] * 4095
        await release(lb, *(f"lease-{k}" for k in range(4098)))
        await is_quiet(lb)

    simulate(main())


@pytest.mark.parametrize("is_granted_first", [False, True])
def test_given_a_waiting_call_when_it_is_cancelled_then_its_place_is_given_up(is_granted_first: bool) -> None:
    async def main() -> None:
        lb = balancer("a")
        holder = acquire(lb, "holder")
        cancelled, next_one = acquire(lb, "cancelled"), acquire(lb, "next")
        await settle()
        assert holder.done()
        if is_granted_first:
            await release(lb, "holder")  # grants, and the call has not been told yet
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        if not is_granted_first:
            await release(lb, "holder")
        assert (await next_one)[0] == "a"
        await release(lb, "next")
        await is_quiet(lb)

    simulate(main())


def test_given_acquires_cancelled_at_every_await_then_nothing_leaks() -> None:
    async def main(point: int) -> None:
        lb = balancer("a")
        await lb.acquire_server("request", "holder")
        call = Suspensions(lb.acquire_server("request", "lease"), cancel_at=frozenset({point}))
        task = asyncio.create_task(_await(call))
        await settle()
        await release(lb, "holder")
        await asyncio.wait([task])
        await release(lb, "lease")
        await is_quiet(lb)

    for point in range(3):
        simulate(main(point))


async def _await(awaitable: Any) -> Any:
    return await awaitable


def test_given_a_lease_that_waits_when_the_same_one_is_requested_again_then_the_first_is_not_harmed() -> None:
    async def main() -> None:
        lb = balancer("a")
        await lb.acquire_server("request", "holder")
        first = acquire(lb, "lease")
        await settle()
        with pytest.raises(AssertionError, match="requested twice"):
            await lb.acquire_server("request", "lease")
        await release(lb, "holder")
        assert await first is not None
        await release(lb, "lease")
        await is_quiet(lb)

    simulate(main())


def test_given_a_release_that_came_first_when_the_request_arrives_then_it_gets_nothing_and_holds_nothing() -> None:
    async def main() -> None:
        lb = balancer()
        await release(lb, "lease")
        assert await lb.acquire_server("request", "lease") is None
        await is_quiet(lb)

    simulate(main())


def test_given_a_waiting_request_when_it_is_released_then_it_returns_at_once() -> None:
    async def main() -> None:
        lb = balancer("a")
        await lb.acquire_server("request", "holder")
        waiter = acquire(lb, "lease")
        await settle()
        await release(lb, "lease")
        assert await waiter is None
        await release(lb, "holder")
        await is_quiet(lb)

    simulate(main())


def test_given_only_a_request_id_as_verl_sends_it_when_released_then_the_lease_it_named_is_back() -> None:
    async def main() -> None:
        lb = balancer()
        server_id, _ = await lb.acquire_server("request")
        await lb.release_server(server_id, "request")
        await is_quiet(lb)
        with pytest.raises(ValueError, match="lease_id"):
            await lb.release_server(server_id)

    simulate(main())


def test_given_a_stop_when_servers_take_different_times_then_it_returns_with_the_slowest_and_nothing_is_granted() -> None:
    async def main() -> None:
        slow = {"a": FakeHandle(ScriptedServer(), latency_s=1), "b": FakeHandle(ScriptedServer(), latency_s=4)}
        lb = GlobalLoadBalancer(slow, {"max_loads_per_server": 1})
        await lb.stop()
        assert now_s() == pytest.approx(8)
        assert await lb.acquire_server("request") is None
        await lb.open()
        assert await lb.acquire_server("request") is not None
        await lb.release_server("", "request")
        await is_quiet(lb)

    simulate(main())


def test_given_a_stop_when_a_server_is_dead_or_dies_then_the_others_are_stopped_and_it_leaves_the_pool() -> None:
    async def main(death_s: float) -> None:
        servers = handles("abc", latency_s=1)
        lb = GlobalLoadBalancer(servers, {"max_loads_per_server": 1})
        held = [await lb.acquire_server(f"lease-{k}") for k in range(3)]
        asyncio.get_running_loop().call_at(death_s, servers["b"].kill)
        await settle()
        await lb.stop()
        assert await lb.get_all_servers() == ["a", "c"]
        assert servers["a"].target.is_stopped and servers["c"].target.is_stopped
        assert await lb.get_total_inflight() == 2
        for k in range(len(held)):
            await lb.release_server("", f"lease-{k}")
        await is_quiet(lb)

    for death_s in (0.0, 0.5, 1.0, 1.5):
        simulate(main(death_s))


def test_given_a_stop_when_a_client_reports_a_server_dead_at_the_same_time_then_the_stop_still_returns() -> None:
    async def main() -> None:
        lb = balancer("abc")
        stop = asyncio.create_task(lb.stop())
        report = asyncio.create_task(lb.remove_servers(["b"]))
        await report
        await stop
        assert await lb.get_all_servers() == ["a", "c"]
        await is_quiet(lb)

    simulate(main())


def test_given_waiters_when_the_last_server_goes_then_each_gets_an_error() -> None:
    async def main() -> None:
        lb = balancer("a")
        await lb.acquire_server("holder")
        waiters = [acquire(lb, f"lease-{k}") for k in range(3)]
        await settle()
        await lb.remove_servers(["a"])
        for waiter in waiters:
            with pytest.raises(RuntimeError, match="No available servers"):
                await waiter
        with pytest.raises(RuntimeError, match="No available servers"):
            await lb.acquire_server("request")
        await lb.release_server("a", "holder")
        await is_quiet(lb)

    simulate(main())


@pytest.mark.parametrize("is_open", [True, False])
def test_given_waiters_when_a_server_is_added_then_it_serves_them_unless_the_round_has_stopped(is_open: bool) -> None:
    async def main() -> None:
        lb = balancer("a")
        await lb.acquire_server("holder")
        waiter = acquire(lb, "lease")
        await settle()
        if not is_open:
            await lb.stop()
        added = handles("b")
        await lb.add_servers(added)
        assert added["b"].target.is_stopped == (not is_open)
        assert (await waiter is not None) == is_open
        await release(lb, "lease", "holder")
        await is_quiet(lb)

    simulate(main())


def test_given_a_server_that_dies_while_it_is_added_then_nobody_is_sent_to_it() -> None:
    async def main() -> None:
        lb = balancer("a")
        await lb.stop()
        added = handles("b", latency_s=1)
        asyncio.get_running_loop().call_at(0.5, added["b"].kill)
        await lb.add_servers(added)
        assert await lb.get_all_servers() == ["a"]
        await lb.open()
        assert [await lb.acquire_server(f"lease-{k}") for k in range(1)] != [None]
        waiter = acquire(lb, "lease-1")
        await settle()
        assert not waiter.done()
        await release(lb, "lease-0", "lease-1")
        await is_quiet(lb)

    simulate(main())


def test_given_a_stopped_server_when_it_is_added_to_an_open_pool_then_it_generates() -> None:
    async def main() -> None:
        lb = balancer("a")
        added = handles("b")
        await added["b"].stop_generation.remote()
        await lb.add_servers(added)
        assert not added["b"].target.is_stopped

    simulate(main())


def test_given_leases_out_when_waiting_for_them_then_it_ends_with_the_last_one_that_is_not_kept() -> None:
    async def main() -> None:
        lb = balancer("ab", capacity=2)
        for k in range(4):
            await lb.acquire_server("request", f"lease-{k}")
        waiting = asyncio.create_task(lb.all_returned(["lease-3"]))
        for k in range(3):
            await settle()
            assert not waiting.done()
            await release(lb, f"lease-{k}")
        await waiting
        await release(lb, "lease-3")

    simulate(main())


def test_given_leases_on_a_server_when_it_goes_then_nobody_waits_for_them() -> None:
    async def main() -> None:
        lb = balancer("ab")
        for k in range(2):
            await lb.acquire_server("request", f"lease-{k}")
        waiting = asyncio.create_task(lb.all_returned([]))
        await release(lb, "lease-0")
        await lb.remove_servers(["a", "b"])
        async with asyncio.timeout(1):
            await waiting

    simulate(main())


def test_statistics_count_leases_waits_and_the_peak_since_they_were_last_taken(monkeypatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("recipe.async_dapo.load_balancer.time.monotonic", asyncio.get_running_loop().time)
        lb = balancer("a")
        await lb.acquire_server("request", "first")
        waiter = acquire(lb, "second")
        await asyncio.sleep(3)
        await release(lb, "first")
        await waiter
        await asyncio.sleep(1)
        await release(lb, "second")
        stats = await lb.take_stats()
        assert (stats.acquired, stats.inflight_max) == (2, 1)
        assert (stats.wait_s_sum, stats.wait_s_max, stats.busy_s) == pytest.approx((3, 3, 4))
        stats = await lb.take_stats()
        assert (stats.acquired, stats.wait_s_sum, stats.inflight_max, stats.busy_s) == (0, 0, 0, 0)

    simulate(main())


@pytest.mark.parametrize("seed", range(30))
def test_given_anything_at_any_time_when_all_is_released_then_nothing_leaks_and_capacity_held(seed: int) -> None:
    """Requests, cancellations, releases in any order, stops, servers that come and go, at random times."""

    async def main() -> None:
        random = Random(seed)
        lb = balancer("ab", capacity=2)

        async def use(k: int) -> None:
            await asyncio.sleep(random.uniform(0, 20))
            call = acquire(lb, f"lease-{k}")
            if random.random() < 0.3:
                await asyncio.sleep(random.uniform(0, 3))
                call.cancel()
            await asyncio.wait([call])
            assert call.cancelled() or call.exception() is None or "No available servers" in str(call.exception())
            assert all(inflight <= 2 for inflight in (await lb.get_status())["servers"].values())
            await asyncio.sleep(random.uniform(0, 4))

        async def operate() -> None:
            for _ in range(10):
                await asyncio.sleep(random.uniform(0, 3))
                operation = random.choice(["stop", "add", "remove"])
                if operation == "stop":
                    await lb.stop()
                    await lb.open()
                elif operation == "add":
                    await lb.add_servers(handles(random.choice("abc")))
                else:
                    await lb.remove_servers([random.choice("abc")])

        async def release_sometime(k: int) -> None:
            await asyncio.sleep(random.uniform(0, 30))
            await release(lb, f"lease-{k}")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(operate())
            for k in range(60):
                tasks.create_task(use(k))
                tasks.create_task(release_sometime(k))
        await is_quiet(lb)

    simulate(main())
