"""Calls that overtake each other: Ray starts an actor's calls in any order."""

import asyncio

from ..support.client_world import GRID_S, assert_whole, cancel_at, ending_of, world
from ..support.simulation import simulate


def test_given_releases_that_overtake_their_requests_when_cancelled_at_any_time_then_no_lease_leaks() -> None:
    def latency_s(method: str) -> float:
        return 1.0 if method == "lease" else 0.0

    async def main(time_s: float) -> None:
        it = world(latency_s=latency_s)
        task = asyncio.create_task(ending_of(it.generate()))
        cancel_at([time_s], task)
        await ending_of(task)
        await it.is_quiet()

    for time_s in GRID_S:
        simulate(main(time_s))


def test_given_an_abort_that_overtakes_its_request_when_cancelled_then_the_request_never_runs() -> None:
    async def main(time_s: float) -> None:
        it = world(latency_s=lambda method: 2.0 if method == "generate" else 0.0)
        task = asyncio.create_task(ending_of(it.generate()))
        cancel_at([time_s], task)
        assert isinstance(await task, asyncio.CancelledError)
        await it.is_quiet()
        assert it.trajectory.raw_response_ids == []

    for time_s in (0.0, 0.5, 1.0, 1.5):
        simulate(main(time_s))


def test_given_a_removal_that_is_slow_when_a_server_dies_then_the_turn_does_not_ask_it_again() -> None:
    async def main() -> None:
        it = world(latency_s=lambda method: 2.0 if method == "remove_servers" else 0.25)
        turn = asyncio.create_task(it.generate())
        await asyncio.sleep(2)
        (name,) = [name for name, server in it.servers.items() if server.running]
        it.handles[name].kill()
        assert_whole(await turn)
        assert [method for method, _, _ in it.handles[name].calls].count("generate") == 1

    simulate(main())
