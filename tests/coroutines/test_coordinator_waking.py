"""Lanes that wait at the coordinator: a free place wakes one of them, and none is lost."""

import asyncio
from dataclasses import replace

import pytest

from recipe.async_dapo.core.round import Round
from recipe.async_dapo.rollout.coordinator import RoundEvent

from ..support.coordinator_world import coordinator, ended, spec, take, tickets
from ..support.simulation import settle, simulate


def test_given_a_pool_size_when_a_trajectory_ends_then_the_next_group_starts_before_the_first_has_ended() -> None:
    async def main() -> None:
        it = coordinator()
        await it.open_round(spec(pool_size=3), tickets("a", "b", unfinished=3))
        await it.take_group("step-1", 0)
        lane = asyncio.create_task(take(it))
        await settle()
        assert not lane.done()
        await it.report_trajectories("step-1", ["a"])
        assert await lane == "b"

    simulate(main())


@pytest.mark.parametrize("is_woken_first", [True, False])
def test_given_waiting_lanes_when_one_is_cancelled_then_another_gets_the_place(is_woken_first) -> None:
    async def main() -> None:
        it = coordinator()
        await it.open_round(spec(pool_size=1), tickets("a", "b"))
        await it.take_group("step-1", 0)
        first, second = (asyncio.create_task(take(it)) for _ in range(2))
        await settle()
        if is_woken_first:
            await it.report_trajectories("step-1", ["a"])
            first.cancel()
        else:
            first.cancel()
            await settle()
            await it.report_trajectories("step-1", ["a"])
        assert await second == "b"
        assert first.cancelled()

    simulate(main())


def test_given_many_waiting_lanes_when_places_come_free_then_only_those_that_get_a_group_are_woken(monkeypatch) -> None:
    lanes, groups = 500, 50
    tried = 0

    def counted_take(state: Round, worker: int) -> str | None:
        nonlocal tried
        tried += 1
        return take_of_round(state, worker)

    take_of_round = Round.take
    monkeypatch.setattr(Round, "take", counted_take)

    async def main() -> None:
        it = coordinator()
        names = [f"group-{i}" for i in range(groups)]
        await it.open_round(spec(target_valid_groups=groups, pool_size=1, num_workers=1), tickets(*names))
        async with asyncio.TaskGroup() as tasks:
            taken = [tasks.create_task(it.take_group("step-1", 0)) for _ in range(lanes)]
            for name in names:
                await settle()
                await it.report_trajectories("step-1", [name])
                await it.report_completion("step-1", ended(name))
        started = [ticket.prompt_uid for lane in taken if (ticket := lane.result()) is not None]
        assert started == names
        assert await it.next_event("step-1") is RoundEvent.STOPPED

    simulate(main())
    assert tried <= lanes + 2 * groups  # a place that comes free is reported twice


def test_given_a_group_that_only_its_home_can_go_on_with_when_a_place_comes_free_then_its_home_is_woken() -> None:
    async def main() -> None:
        it = coordinator()
        [bound] = [replace(ticket, home=1, is_bound=True) for ticket in tickets("bound")]
        await it.open_round(spec(pool_size=1), [*tickets("a"), bound])
        await it.take_group("step-1", 0)
        other, home = (asyncio.create_task(take(it, worker=worker)) for worker in (0, 1))
        await settle()
        await it.report_trajectories("step-1", ["a"])
        assert await home == "bound"
        assert not other.done()
        other.cancel()
        await asyncio.wait([other])

    simulate(main())
