"""The coordinator of a round that has no end: versions, batches that are handed over, groups that may begin."""

import asyncio
from dataclasses import fields
from typing import Any

from recipe.async_dapo.core.round import RoundSpec
from recipe.async_dapo.extensions.separate.coordinator import RollingCoordinator
from recipe.async_dapo.extensions.separate.rolling_round import RollingSpec
from recipe.async_dapo.rollout.coordinator import RoundEvent

from ....support.coordinated import FakeBalancer, ended, take
from ....support.fakes import FakeHandle
from ....support.rounds import spec, tickets, with_one_part
from ....support.simulation import settle


def coordinator() -> RollingCoordinator:
    return RollingCoordinator(FakeHandle(FakeBalancer()))


def rolling_spec(**options: Any) -> RollingSpec:
    about = {"step": 1, "max_staleness": 1, "most_begun": 2, "target_valid_groups": 1, "carried_valid_groups": 0}
    common = {one.name: getattr(spec(), one.name) for one in fields(RoundSpec)}
    return RollingSpec(**common | with_one_part(about | options))


async def test_given_versions_that_overtake_each_other_then_groups_begin_under_the_newest_that_is_known() -> None:
    it = coordinator()
    await it.note_versions(3, 3)
    await it.note_versions(2, 2)
    await it.open_round(rolling_spec(step=4, max_staleness=0, most_begun=9), tickets(*"ab"))
    assert await take(it) == "a"
    await it.close_round("step-1")


async def test_given_a_group_that_begins_before_a_batch_is_taken_and_has_to_be_in_it_then_the_trainer_waits_again():
    it = coordinator()
    await it.note_versions(1, 1)
    await it.open_round(
        rolling_spec(step=3, carried=(("new", 2),), carried_valid_groups=1), tickets("a")
    )  # newer than a
    assert await it.next_event("step-1") is RoundEvent.HAS_BATCH
    assert await take(it) == "a"
    assert await it.hand_over("step-1") is None
    await it.report_completion("step-1", ended("a"))
    assert await it.next_event("step-1") is RoundEvent.HAS_BATCH
    part = await it.hand_over("step-1")
    assert part is not None and part.handed_over == ("a",)


async def test_given_a_lane_that_waits_when_more_may_be_under_way_then_it_gets_a_group() -> None:
    it = coordinator()
    await it.open_round(rolling_spec(most_begun=1), tickets(*"ab"))
    await take(it)
    lane = asyncio.create_task(it.take_group("step-1", 0))
    await settle()
    assert not lane.done()
    await it.resize("step-1", rolling_spec(most_begun=2))
    assert await lane is not None
