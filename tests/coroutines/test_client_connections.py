"""A server that cannot be reached for a while: its requests are asked again, and no place of it is given away."""

import asyncio

import pytest

from recipe.async_dapo.engines.engine_requests import TrajectoryInterrupted

from ..support.client_world import GRID_S, World, assert_whole, ending_of, world
from ..support.fakes import ScriptedServer
from ..support.simulation import at_each


@pytest.mark.parametrize("pause_mode", ["abort", "keep"])
@at_each(GRID_S)
async def test_given_a_connection_that_breaks_at_any_time_then_the_turn_is_whole_and_the_server_stays(
    pause_mode, time_s: float
):
    it = world(pause_mode=pause_mode)
    asyncio.get_running_loop().call_at(time_s, it.handles["a"].cut_off, 2.5)
    assert_whole(await it.generate())
    await asyncio.sleep(100)
    status = await it.balancer.get_status()
    assert (status["total_inflight"], status["active_servers"]) == (0, 2)
    assert not it.servers["a"].running and not it.servers["b"].running


async def test_given_a_connection_that_stays_broken_when_it_is_back_then_the_lost_request_ends_and_its_lease_returns():
    it = World({"a": ScriptedServer(100)})
    asyncio.get_running_loop().call_at(3.0, it.handles["a"].cut_off, 5.0)
    turn = asyncio.create_task(it.generate())
    await asyncio.sleep(7.5)
    assert len(it.servers["a"].running) == 1
    assert (await it.balancer.get_status())["total_inflight"] >= 1  # it still takes a place
    await asyncio.sleep(5.0)
    (lost,) = it.servers["a"].generated.values()
    assert len(lost) < 10
    assert len(it.servers["a"].running) == (await it.balancer.get_status())["total_inflight"] == 1
    await turn


@at_each((0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 2.0))
async def test_given_a_server_that_cannot_be_reached_and_then_dies_then_the_turns_are_whole_on_the_other_one(
    death_s: float,
):
    it = world()
    loop = asyncio.get_running_loop()
    loop.call_at(3.0, it.handles["a"].cut_off, 0.5)
    loop.call_at(3.0 + death_s, it.handles["a"].kill)
    assert_whole(await it.generate())
    await asyncio.sleep(100)
    status = await it.balancer.get_status()
    assert status["total_inflight"] == 0 and "b" in status["servers"]  # nobody may have noticed a death


@pytest.mark.parametrize("pause_mode", ["abort", "keep"])
@at_each((2.5, 2.75, 3.0, 3.25, 3.5, 4.0, 4.5))
async def test_given_a_broken_connection_when_the_engines_stop_then_the_turn_is_interrupted_and_whole_when_resumed(
    pause_mode, time_s: float
):
    it = world(pause_mode=pause_mode)
    asyncio.get_running_loop().call_at(3.0, it.handles["a"].cut_off, 0.5)
    turn = asyncio.create_task(ending_of(it.generate()))
    await asyncio.sleep(time_s)
    await it.balancer.stop()
    assert isinstance(await turn, TrajectoryInterrupted)
    assert not it.servers["a"].running or it.trajectory.turns[0].attachment is not None
    await it.balancer.open()
    assert_whole(await it.generate())
