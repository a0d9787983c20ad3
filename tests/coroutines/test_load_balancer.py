"""The load balancer actor as a plain class: waiters, stops, servers that come, go and die."""

import asyncio
from random import Random
from typing import Any

import pytest

from ..support.balancer_world import acquire, balancer, handles, is_quiet, release
from ..support.simulation import Suspensions, now_s, settle, simulate


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


def test_statistics_count_leases_and_the_peak_since_they_were_last_taken(monkeypatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("recipe.async_dapo.engines.load_balancer.time.monotonic", asyncio.get_running_loop().time)
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
        assert stats.busy_s == pytest.approx(4)
        stats = await lb.take_stats()
        assert (stats.acquired, stats.inflight_max, stats.busy_s) == (0, 0, 0)

    simulate(main())


def test_statistics_leave_out_voided_waiters_and_the_time_between_stop_and_opening(monkeypatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("recipe.async_dapo.engines.load_balancer.time.monotonic", asyncio.get_running_loop().time)
        lb = balancer("a")
        await lb.acquire_server("request", "frozen")
        voided = acquire(lb, "voided")
        await asyncio.sleep(3)
        await lb.stop()
        assert await voided is None
        stats = await lb.take_stats()
        assert stats.acquired == 1
        assert stats.busy_s == pytest.approx(3)
        await asyncio.sleep(100)  # the frozen request keeps its place while the trainer trains
        await lb.open()
        await asyncio.sleep(2)
        stats = await lb.take_stats()
        assert (stats.inflight_max, stats.busy_s) == (1, pytest.approx(2))

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
