"""The coordinator actor as a plain class: events reach everybody at once, old rounds touch nothing."""

import asyncio
from dataclasses import replace

import pytest

from recipe.async_dapo.core.round import GroupEvent, Round
from recipe.async_dapo.rollout.coordinator import EarlyStoppingCoordinator, RoundEvent

from ..support.coordinated import FakeBalancer, ended, take
from ..support.fakes import FakeHandle
from ..support.rounds import spec, tickets
from ..support.simulation import now_s, settle, simulate


def coordinator(balancer: FakeBalancer | None = None) -> EarlyStoppingCoordinator:
    return EarlyStoppingCoordinator(FakeHandle(balancer or FakeBalancer()))


async def test_given_the_last_valid_report_when_it_arrives_then_everybody_knows_without_the_clock_moving() -> None:
    balancer = FakeBalancer(takes_s=0.0)
    it = coordinator(balancer)
    await it.open_round(spec(), tickets("a", "b", "c"))
    assert not await it.should_stop_generation()
    taken = [await take(it, worker=worker) for worker in (0, 1, 0)]
    assert taken == ["a", "b", "c"]
    lanes = [asyncio.create_task(it.take_group("step-1", worker)) for worker in (0, 1)]
    watchers = [asyncio.create_task(it.wait_stopped("step-1")) for _ in range(8)]
    event = asyncio.create_task(it.next_event("step-1"))
    await asyncio.sleep(1000)
    await it.report_completion("step-1", ended("c"))
    await asyncio.sleep(1000)
    assert not event.done() and not any(task.done() for task in lanes + watchers)
    last_report_s = now_s()
    await it.report_completion("step-1", ended("a"))
    assert await event is RoundEvent.STOPPED
    assert [await lane for lane in lanes] == [None, None]
    await asyncio.wait(watchers)
    assert now_s() == last_report_s and balancer.stops_s == [last_report_s]
    assert await it.should_stop_generation()
    summary = await it.close_round("step-1")
    assert summary.taken_unreported == ("b",)
    assert summary.stop_latency_s < 1


async def test_given_engines_that_take_time_to_stop_then_workers_know_at_once_and_the_trainer_when_all_are_idle():
    it = coordinator(FakeBalancer(takes_s=5))
    await it.open_round(spec(target_valid_groups=1), tickets("a"))
    await it.take_group("step-1", 0)
    event = asyncio.create_task(it.next_event("step-1"))
    await it.report_completion("step-1", ended("a"))
    await it.wait_stopped("step-1")
    assert now_s() == 0 and not event.done()
    await event
    assert now_s() == pytest.approx(5)


async def test_given_a_new_round_when_late_calls_of_the_old_one_arrive_then_it_is_not_touched() -> None:
    it = coordinator()
    await it.open_round(spec("step-1", target_valid_groups=1), tickets("a", "same"))
    await it.take_group("step-1", 0), await it.take_group("step-1", 0)
    await it.report_completion("step-1", ended("a"))
    await it.close_round("step-1")
    await it.open_round(spec("step-2", target_valid_groups=1), tickets("same", "b"))
    assert await take(it, "step-2") == "same"
    await it.report_completion("step-1", ended("same"))
    await it.report_progress("step-1", [("same", GroupEvent.GENERATED)])
    assert await it.take_group("step-1", 0) is None
    await it.wait_stopped("step-1")
    assert not await it.should_stop_generation()
    assert await take(it, "step-2", 1) == "b"
    await it.report_completion("step-2", ended("same"))
    assert await it.next_event("step-2") is RoundEvent.STOPPED


@pytest.mark.parametrize("is_closed", [True, False])
async def test_given_calls_that_wait_in_a_round_when_it_is_closed_or_replaced_then_none_waits_for_ever(is_closed):
    it = coordinator()
    await it.open_round(spec("step-1", target_valid_groups=5), tickets("a"))
    await it.take_group("step-1", 0)
    lane = asyncio.create_task(it.take_group("step-1", 0))
    watcher = asyncio.create_task(it.wait_stopped("step-1"))
    await settle()
    if is_closed:
        await it.close_round("step-1")
    else:
        await it.open_round(spec("step-2"), [])
    assert await lane is None
    await watcher


async def test_given_a_balancer_that_fails_to_stop_the_engines_then_the_trainer_gets_the_error() -> None:
    it = coordinator(FakeBalancer(error=RuntimeError("no answer")))
    await it.open_round(spec(target_valid_groups=1), tickets("a"))
    await it.take_group("step-1", 0)
    await it.report_completion("step-1", ended("a"))
    for call in (it.next_event("step-1"), it.close_round("step-1")):
        with pytest.raises(RuntimeError, match="no answer"):
            await call


def test_given_a_round_that_is_not_open_when_groups_are_added_then_it_is_an_error() -> None:
    with pytest.raises(AssertionError, match="step-1 is not open"):
        simulate(coordinator().add_groups("step-1", tickets("a")))


@pytest.mark.parametrize("is_woken_first", [True, False])
async def test_given_waiting_lanes_when_one_is_cancelled_then_another_gets_the_place(is_woken_first) -> None:
    it = coordinator()
    await it.open_round(spec(pool_size=1), tickets("a", "b"))
    await it.take_group("step-1", 0)
    first, second = (asyncio.create_task(take(it)) for _ in range(2))
    await settle()
    if is_woken_first:
        await it.report_progress("step-1", [("a", GroupEvent.GENERATED)])
        first.cancel()
    else:
        first.cancel()
        await settle()
        await it.report_progress("step-1", [("a", GroupEvent.GENERATED)])
    assert await second == "b"
    assert first.cancelled()


async def test_given_lanes_that_wait_when_groups_come_then_each_lane_that_gets_one_wakes_the_next() -> None:
    it = coordinator()
    await it.open_round(spec(), [])
    lanes = [asyncio.create_task(take(it, worker=worker)) for worker in (0, 1)]
    await settle()
    await it.add_groups("step-1", tickets("a", "b"))
    assert [await lane for lane in lanes] == ["a", "b"]


async def test_given_many_waiting_lanes_when_places_come_free_then_only_those_that_get_a_group_are_woken(monkeypatch):
    lanes, groups = 500, 50
    tried = 0

    def counted_take(state: Round, worker: int) -> str | None:
        nonlocal tried
        tried += 1
        return take_of_round(state, worker)

    take_of_round = Round.take
    monkeypatch.setattr(Round, "take", counted_take)

    it = coordinator()
    names = [f"group-{i}" for i in range(groups)]
    await it.open_round(spec(target_valid_groups=groups, pool_size=1), tickets(*names))
    async with asyncio.TaskGroup() as tasks:
        taken = [tasks.create_task(it.take_group("step-1", 0)) for _ in range(lanes)]
        for name in names:
            await settle()
            await it.report_progress("step-1", [(name, GroupEvent.GENERATED)])
            await it.report_completion("step-1", ended(name))
    started = [ticket.prompt_uid for lane in taken if (ticket := lane.result()) is not None]
    assert started == names
    assert await it.next_event("step-1") is RoundEvent.STOPPED
    assert tried <= lanes + 2 * groups  # a place that comes free is reported twice


async def test_given_a_group_that_only_its_home_can_go_on_with_when_a_place_comes_free_then_its_home_is_woken() -> None:
    it = coordinator()
    [bound] = [replace(ticket, affinity=1, is_pinned=True) for ticket in tickets("bound")]
    await it.open_round(spec(pool_size=1), [*tickets("a"), bound])
    await it.take_group("step-1", 0)
    other, home = (asyncio.create_task(take(it, worker=worker)) for worker in (0, 1))
    await settle()
    await it.report_progress("step-1", [("a", GroupEvent.GENERATED)])
    assert await home == "bound"
    assert not other.done()
    other.cancel()
    await asyncio.wait([other])
