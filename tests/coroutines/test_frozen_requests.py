"""Requests that stay in their engines over a weight update, with their leases: continued, cancelled, lost, dropped."""

import asyncio

from recipe.async_dapo.calls import Recorder, current_recorder
from recipe.async_dapo.core.trajectory import Attachment
from recipe.async_dapo.engines.engine_requests import TrajectoryInterrupted

from ..support.client_world import (
    ALL_TOKENS,
    GRID_S,
    LATENCY_S,
    LENGTH_TOK,
    PROMPT,
    World,
    assert_whole,
    ending_of,
    world,
)
from ..support.simulation import Suspensions, simulate


async def paused_at(it: World, time_s: float) -> None:
    """Generate, pause, and update the weights."""
    task = asyncio.create_task(ending_of(it.generate()))
    await asyncio.sleep(time_s)
    await it.balancer_handle.stop.remote()
    ending = await task
    assert ending is None or isinstance(ending, TrajectoryInterrupted)
    await asyncio.sleep(1)
    for handle in it.handles.values():
        await handle.set_global_steps.remote(1)
    await it.balancer_handle.open.remote()


def attachments(it: World) -> list[Attachment]:
    return [turn.attachment for turn in it.trajectory.turns if turn.attachment is not None]


def test_given_a_pause_at_any_time_when_resumed_then_the_request_goes_on_in_its_engine_with_the_new_version() -> None:
    async def main(time_s: float) -> None:
        it = world(pause_mode="keep")
        await paused_at(it, time_s)
        before_tok = len(it.trajectory.raw_response_ids)
        status = await it.balancer.get_status()
        assert status["total_inflight"] == len(attachments(it))
        output = await it.generate()
        assert_whole(output)
        assert not attachments(it) and it.recorder.reprefilled_tok == []
        after_tok = LENGTH_TOK - before_tok
        assert it.trajectory.stamps == ((0, before_tok),) * (before_tok > 0) + ((1, after_tok),) * (after_tok > 0)
        await it.is_quiet()

    for time_s in GRID_S:
        simulate(main(time_s))


def test_given_a_frozen_request_when_its_resumption_is_cancelled_at_every_await_then_nothing_is_lost_or_leaks() -> None:
    async def main(points: frozenset[int]) -> int:
        it = world(pause_mode="keep")
        await paused_at(it, 3.0)
        assert len(attachments(it)) == 1
        resumption = Suspensions(it.generate(), cancel_at=points)
        ending = await asyncio.create_task(ending_of(resumption))
        assert isinstance(ending, asyncio.CancelledError) == bool(points)
        await asyncio.sleep(4 * LATENCY_S)
        running = sum(len(server.running) for server in it.servers.values())
        assert await it.balancer.get_total_inflight() == running == len(attachments(it)), "a request without a lease"
        it.client.abandon(attachments(it))
        for turn in it.trajectory.turns:
            turn.attachment = None
        await asyncio.sleep(50)
        status = await it.balancer.get_status()
        assert (status["total_inflight"], status["waiting"]) == (0, 0)
        assert not any(server.running for server in it.servers.values())
        assert it.trajectory.raw_response_ids == ALL_TOKENS[: len(it.trajectory.raw_response_ids)]
        assert_whole(await it.generate())
        return resumption.count

    count = simulate(main(frozenset()))
    assert count >= 2
    for first in range(count):
        simulate(main(frozenset({first})))
        simulate(main(frozenset({first, first + 1})))


def test_given_a_frozen_request_when_its_server_dies_then_it_is_continued_elsewhere_from_its_tokens() -> None:
    async def main(death_s: float) -> None:
        it = world(pause_mode="keep")
        await paused_at(it, 3.0)
        kept_tok = len(it.trajectory.raw_response_ids)
        (attachment,) = attachments(it)
        asyncio.get_running_loop().call_later(death_s, it.handles[attachment.server_id].kill)
        assert_whole(await it.generate())
        assert it.recorder.reprefilled_tok[:1] == [len(PROMPT) + kept_tok]
        await asyncio.sleep(50)
        assert await it.balancer.get_total_inflight() == 0

    for death_s in (0.0, 0.1, 0.3, 0.6, 1.5):
        simulate(main(death_s))


def test_given_a_loop_that_takes_another_way_when_resumed_then_its_frozen_request_leaves_the_engine() -> None:
    async def main() -> None:
        it = world(pause_mode="keep")
        await paused_at(it, 3.0)
        it.recorder = Recorder(trajectory=it.trajectory)
        current_recorder.set(it.recorder)
        await it.client.generate("request", prompt_ids=[8], sampling_params={"logprobs": True})
        assert it.recorder.diverged_tok == 2 and len(it.recorder.diverged_attachments) == 1
        it.client.abandon(it.recorder.diverged_attachments)
        await asyncio.sleep(50)
        assert await it.balancer.get_total_inflight() == 0
        assert not any(server.running for server in it.servers.values())

    simulate(main())
