"""The client: whatever is cancelled, stopped or dies, no lease leaks and no token is lost or made up."""

import asyncio

import pytest

from recipe.async_dapo.calls import Recorder, current_recorder
from recipe.async_dapo.config import ConfigError
from recipe.async_dapo.core.drafts import RequestName
from recipe.async_dapo.core.trajectory import Trajectory
from recipe.async_dapo.engines.engine_requests import EnginesUnavailable, TrajectoryInterrupted

from ..support.client_world import (
    CLEANUP_TIMEOUT_S,
    DONE_S,
    GRID_S,
    LATENCY_S,
    LENGTH_TOK,
    World,
    assert_whole,
    cancel_at,
    ending_of,
    world,
)
from ..support.fakes import ScriptedServer
from ..support.simulation import Suspensions, now_s, settle, simulate


def test_given_nothing_goes_wrong_when_a_turn_is_generated_then_its_tokens_log_probs_and_versions_are_recorded():
    async def main() -> None:
        it = world()
        output = await it.generate()
        assert_whole(output)
        assert now_s() == pytest.approx(DONE_S)
        assert output.extra_fields == {"global_steps": 0, "min_global_steps": 0, "max_global_steps": 0}
        await it.is_quiet()

    simulate(main())


def test_a_turn_costs_one_call_for_its_lease_and_one_that_nobody_waits_for_to_give_it_back() -> None:
    async def main() -> None:
        it = world()
        await it.generate()
        await it.is_quiet()
        assert [method for method, _, _ in it.balancer_handle.calls] == ["lease", "server", "give_back"]
        await it.client.generate("request", prompt_ids=[8], sampling_params={"logprobs": True})
        await settle()
        assert [method for method, _, _ in it.balancer_handle.calls[3:]] == ["lease", "give_back"]

    simulate(main())


def test_given_a_prompt_group_when_a_request_is_sent_then_its_name_tells_whose_answer_it_generates() -> None:
    async def main() -> str:
        it = world()
        current_recorder.set(Recorder(trajectory=Trajectory(session_id=3), prompt_uid="group"))
        await it.client.generate("request", prompt_ids=[7], sampling_params={})
        [(_, arguments, _)] = [call for call in it.balancer_handle.calls if call[0] == "lease"]
        return arguments[1]

    assert RequestName.parse(simulate(main()) + "-1a2b") == RequestName("group", "3-1", 1)


@pytest.mark.parametrize("name", ["min_p", "logit_bias"])
def test_given_drafts_when_a_loop_asks_for_what_vllm_refuses_with_them_then_it_is_told_at_once(name: str) -> None:
    async def main(**options: bool) -> None:
        await world(**options).generate(**{name: 0.5})

    with pytest.raises(
        ConfigError, match=rf"sampling_params.{name}=0.5: vLLM refuses it where drafts are verified; set"
    ):
        simulate(main(drafts=True))
    simulate(main())


def suspensions_of_a_turn() -> int:
    async def main() -> int:
        suspensions = Suspensions(world().generate())
        await suspensions
        return suspensions.count

    return simulate(main())


def test_given_a_turn_when_cancelled_at_every_await_then_nothing_leaks_and_it_resumes_from_its_tokens() -> None:
    async def main(point: int) -> None:
        it = world()
        ending = await asyncio.create_task(ending_of(Suspensions(it.generate(), cancel_at=frozenset({point}))))
        assert isinstance(ending, asyncio.CancelledError)
        await it.is_quiet()
        assert_whole(await it.generate())
        await it.is_quiet()

    count = suspensions_of_a_turn()
    assert count >= 2
    for point in range(count):
        simulate(main(point))


def test_given_a_turn_when_cancelled_at_every_two_awaits_then_nothing_leaks_and_no_token_is_lost() -> None:
    async def main(first: int, second: int) -> None:
        it = world()
        ending = await asyncio.create_task(ending_of(Suspensions(it.generate(), cancel_at=frozenset({first, second}))))
        assert isinstance(ending, asyncio.CancelledError)
        await it.is_quiet()

    count = suspensions_of_a_turn()
    for first in range(count):
        for second in range(first + 1, first + 4):
            simulate(main(first, second))


@pytest.mark.parametrize("after_s", [None, 0.0, LATENCY_S / 2, LATENCY_S, 3 * LATENCY_S])
def test_given_a_turn_when_cancelled_at_any_time_and_again_then_nothing_leaks_and_no_token_is_lost(after_s) -> None:
    async def main(time_s: float) -> None:
        it = world()
        task = asyncio.create_task(ending_of(it.generate()))
        cancel_at([time_s] if after_s is None else [time_s, time_s + after_s], task)
        ending = await ending_of(task)
        assert time_s >= DONE_S or isinstance(ending or task.result(), asyncio.CancelledError)
        await it.is_quiet()
        if time_s < DONE_S - LATENCY_S:  # stopped as soon as the abort has arrived, not run to its end
            assert len(it.trajectory.raw_response_ids) <= max(0.0, time_s - 2 * LATENCY_S)

    for time_s in GRID_S:
        simulate(main(time_s))


def test_given_a_stop_at_any_time_then_the_turn_is_interrupted_and_resumes_with_the_new_version() -> None:
    async def main(time_s: float) -> None:
        it = world()
        task = asyncio.create_task(ending_of(it.generate()))
        await asyncio.sleep(time_s)
        await it.balancer_handle.stop.remote()
        ending = await task
        assert ending is None or isinstance(ending, TrajectoryInterrupted)
        await it.is_quiet()
        before_tok = len(it.trajectory.raw_response_ids)
        for handle in it.handles.values():
            await handle.set_global_steps.remote(1)
        await it.balancer_handle.open.remote()
        output = await it.generate()
        assert_whole(output)
        after_tok = LENGTH_TOK - before_tok
        stamps = ((0, before_tok),) * (before_tok > 0) + ((1, after_tok),) * (after_tok > 0)
        assert it.trajectory.stamps == stamps
        assert output.extra_fields["min_global_steps"] == stamps[0][0]
        await it.is_quiet()

    for time_s in GRID_S:
        simulate(main(time_s))


def test_given_all_slots_taken_when_the_stop_comes_then_the_waiting_turn_is_interrupted_at_once() -> None:
    async def main() -> None:
        it = world(capacity=1)
        others = [await it.balancer.acquire_server("other", f"other-{k}") for k in range(2)]
        assert all(others)
        task = asyncio.create_task(ending_of(it.generate()))
        await asyncio.sleep(5)
        stopped_s = now_s()
        await it.balancer.stop()
        assert isinstance(await task, TrajectoryInterrupted)
        assert now_s() <= stopped_s + 2 * LATENCY_S
        for k in range(2):
            await it.balancer.release([f"other-{k}"])
        await it.is_quiet()

    simulate(main())


def test_given_a_server_dies_at_any_time_then_the_turn_is_whole_on_the_other_one() -> None:
    async def main(time_s: float) -> None:
        it = world()
        asyncio.get_running_loop().call_at(time_s, it.handles["a"].kill)
        assert_whole(await it.generate())
        await asyncio.sleep(100)
        assert await it.balancer.get_total_inflight() == 0
        assert len(it.servers["b"].generated) == (time_s < DONE_S)

    for time_s in GRID_S[:-2]:
        simulate(main(time_s))


def test_given_a_call_that_wants_no_log_probs_then_it_gets_none_and_the_record_has_them() -> None:
    async def main() -> None:
        it = world()
        assert (await it.generate(logprobs=False)).log_probs is None
        assert_whole(await it.generate())  # answered from the record

    simulate(main())


def test_given_all_servers_dead_when_generating_then_it_is_an_error_and_no_endless_retry() -> None:
    async def main() -> None:
        it = world()
        for handle in it.handles.values():
            handle.kill()
        assert isinstance(await ending_of(it.generate()), EnginesUnavailable)
        assert now_s() < 10
        await it.is_quiet()

    simulate(main())


def test_given_the_balancer_dies_when_a_turn_waits_then_it_is_an_error() -> None:
    async def main() -> None:
        it = world()
        asyncio.get_running_loop().call_at(LATENCY_S / 2, it.balancer_handle.kill)
        assert "died" in str(await ending_of(it.generate()))

    simulate(main())


@pytest.mark.parametrize("death_after_s", [-0.125, 0.0, 0.125, LATENCY_S, 1.0])
def test_given_a_cancelled_turn_when_its_server_dies_too_then_it_ends_and_generates_nowhere_else(death_after_s) -> None:
    async def main(time_s: float) -> None:
        it = world()
        task = asyncio.create_task(ending_of(it.generate()))
        cancel_at([time_s], task)
        asyncio.get_running_loop().call_at(time_s + death_after_s, it.handles["a"].kill)
        ending = await ending_of(task)
        assert isinstance(ending or task.result(), asyncio.CancelledError)
        assert now_s() < time_s + 2
        await asyncio.sleep(100)
        status = await it.balancer.get_status()
        assert (status["total_inflight"], status["waiting"]) == (0, 0)
        if death_after_s >= 0:
            assert not it.servers["b"].generated

    for time_s in GRID_S[3:-12]:
        simulate(main(time_s))


def test_given_a_server_that_ignores_aborts_when_cancelled_then_it_ends_as_cancelled_within_the_time_limit() -> None:
    async def main() -> None:
        it = World({"a": ScriptedServer(10_000, hangs=True)}, response_length=10_000)
        task = asyncio.create_task(ending_of(it.generate()))
        cancel_at([3.0], task)
        ending = await ending_of(task)
        assert isinstance(ending or task.result(), asyncio.CancelledError)
        assert now_s() <= 3 + CLEANUP_TIMEOUT_S + 1
        await settle()
        assert await it.balancer.get_total_inflight() in (0, 1)
        await asyncio.sleep(1)
        assert await it.balancer.get_total_inflight() == 0

    simulate(main())


def test_given_recorded_turns_when_the_loop_is_run_again_then_no_server_is_asked() -> None:
    async def main() -> None:
        it = world()
        first = await it.generate()
        calls = len(it.balancer_handle.calls)
        second = await it.generate()
        assert second.token_ids == first.token_ids
        await settle()
        assert len([call for call in it.balancer_handle.calls[calls:] if call[0] == "lease"]) == 0
        await it.is_quiet()

    simulate(main())


def test_given_more_trajectories_than_slots_when_all_are_cancelled_at_any_time_then_capacity_holds_and_none_leaks():
    async def main(time_s: float) -> None:
        servers = {name: ScriptedServer(lambda prompt: prompt[0] % 5 + 1) for name in "ab"}
        it = World(servers, capacity=2)

        async def trajectory(k: int) -> None:
            current_recorder.set(Recorder(trajectory=Trajectory(session_id=k)))
            await it.client.generate(f"request-{k}", prompt_ids=[k], sampling_params={"logprobs": True})

        tasks = [asyncio.create_task(ending_of(trajectory(k))) for k in range(12)]
        for k, task in enumerate(tasks):
            cancel_at([time_s + 0.01 * k], task)
        await asyncio.wait(tasks)
        await asyncio.sleep(100)
        assert max(server.max_running for server in servers.values()) <= 2
        status = await it.balancer.get_status()
        assert (status["total_inflight"], status["waiting"]) == (0, 0)

    for time_s in GRID_S[::2]:
        simulate(main(time_s))
