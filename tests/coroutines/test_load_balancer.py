"""The load balancer actor as a plain class: waiters, stops, servers that come, go and die."""

import asyncio
from random import Random

import pytest

from ..support.balancer_world import acquire, balancer, handles, is_quiet, release
from ..support.client_world import LENGTH_TOK, assert_whole, world
from ..support.fakes import token_at
from ..support.simulation import now_s, settle


@pytest.mark.parametrize(("keeps_siblings", "servers"), [(True, 1), (False, 4)])
async def test_given_requests_of_a_group_when_siblings_are_to_be_kept_together_then_they_are_leased_on_one_server(
    keeps_siblings, servers
) -> None:
    lb = balancer("abcd", capacity=64, keeps_siblings=keeps_siblings)
    names = [f"lease-{k}" for k in range(4)]
    assert len({await lb.lease(f"trajectory-{name}", name, 100, group="group") for name in names}) == servers
    await release(lb, *names)


async def test_given_4096_waiters_when_a_lease_is_released_then_the_next_one_has_it_at_once() -> None:
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


@pytest.mark.parametrize("is_granted_first", [False, True])
async def test_given_a_waiting_call_when_it_is_cancelled_then_its_place_is_given_up(is_granted_first: bool) -> None:
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
    assert await next_one == "a"
    await release(lb, "next")
    await is_quiet(lb)


async def test_given_a_lease_that_waits_when_the_same_one_is_requested_again_then_the_first_is_not_harmed() -> None:
    lb = balancer("a")
    await lb.lease("request", "holder")
    first = acquire(lb, "lease")
    await settle()
    with pytest.raises(AssertionError, match="requested twice"):
        await lb.lease("request", "lease")
    await release(lb, "holder")
    assert await first is not None
    await release(lb, "lease")
    await is_quiet(lb)


async def test_given_leases_out_when_waiting_for_them_then_it_ends_with_the_last_one_that_is_not_kept() -> None:
    lb = balancer("ab", capacity=2)
    for k in range(4):
        await lb.lease("request", f"lease-{k}")
    waiting = asyncio.create_task(lb.all_returned(["lease-3"]))
    for k in range(3):
        await settle()
        assert not waiting.done()
        await release(lb, f"lease-{k}")
    await waiting
    await release(lb, "lease-3")


async def test_statistics_are_since_they_were_taken_without_voided_waiters_and_the_time_between_rounds(monkeypatch):
    monkeypatch.setattr("recipe.async_dapo.engines.load_balancer.time.monotonic", asyncio.get_running_loop().time)
    lb = balancer("a")
    await lb.lease("request", "first")
    frozen, voided = acquire(lb, "frozen"), acquire(lb, "voided")
    await asyncio.sleep(3)
    await release(lb, "first")
    await frozen
    await asyncio.sleep(1)
    await lb.stop()
    assert await voided is None
    stats = await lb.take_stats()
    assert (stats.acquired, stats.inflight_max, stats.busy_s) == (2, 1, pytest.approx(4))
    await asyncio.sleep(100)  # the frozen request keeps its place while the trainer trains
    await lb.open()
    await asyncio.sleep(2)
    stats = await lb.take_stats()
    assert (stats.acquired, stats.inflight_max, stats.busy_s) == (0, 1, pytest.approx(2))
    await release(lb, "frozen")
    await lb.take_stats()
    assert (await lb.take_stats()).inflight_max == 0


@pytest.mark.parametrize("seed", range(20))
async def test_given_anything_at_any_time_when_all_is_released_then_nothing_leaks_and_capacity_held(seed: int) -> None:
    """Requests, cancellations, releases in any order, stops, servers that come and go, at random times."""

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


async def test_given_an_agent_loop_that_generates_twice_in_parallel_under_one_id_then_both_answers_are_whole() -> None:
    it = world()
    first = it.generate()
    second = it.client.generate("request", prompt_ids=[8], sampling_params={"logprobs": True})
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(first), tasks.create_task(second)]
    assert_whole(calls[0].result())
    assert calls[1].result().token_ids == [token_at([8], k) for k in range(LENGTH_TOK)]
    await it.is_quiet()
