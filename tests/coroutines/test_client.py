"""The client: whatever is cancelled, stopped or dies, no lease leaks and no token is lost or made up."""

import asyncio
from dataclasses import replace

import pytest

from recipe.async_dapo.calls import Recorder, current_recorder
from recipe.async_dapo.config import ConfigError
from recipe.async_dapo.core.trajectory import Trajectory
from recipe.async_dapo.engines.engine_requests import TrajectoryInterrupted

from ..support.client_world import (
    ALL_TOKENS,
    CLEANUP_TIMEOUT_S,
    DONE_S,
    GRID_S,
    LATENCY_S,
    LENGTH_TOK,
    World,
    assert_whole,
    cancel_at,
    ending_of,
    stopped_at,
    world,
)
from ..support.fakes import ScriptedServer
from ..support.scripted_engine import ScriptedEngine, start_server
from ..support.simulation import Suspensions, at_each, now_s, settle, simulate


async def test_a_turn_costs_a_call_for_its_lease_and_an_unawaited_one_to_give_it_back_and_none_from_the_record():
    it = world()
    output = await it.generate()
    assert_whole(output)
    assert now_s() == pytest.approx(DONE_S)
    assert output.extra_fields == {"global_steps": 0, "min_global_steps": 0, "max_global_steps": 0}
    assert output.num_preempted is None, "these servers do not say"
    await it.is_quiet()
    assert (await it.generate()).token_ids == output.token_ids
    assert [method for method, _, _ in it.balancer_handle.calls] == ["lease", "server", "give_back"]
    await it.client.generate("request", prompt_ids=[8], sampling_params={"logprobs": True})
    await settle()
    assert [method for method, _, _ in it.balancer_handle.calls[3:]] == ["lease", "give_back"]


async def test_given_a_prompt_group_when_a_request_is_sent_then_the_load_balancer_is_told_whose_answer_it_generates():
    it = world()
    current_recorder.set(Recorder(trajectory=Trajectory(session_id=3), prompt_uid="group"))
    await it.client.generate("request", prompt_ids=[7], sampling_params={})
    [(_, arguments, _)] = [call for call in it.balancer_handle.calls if call[0] == "lease"]
    assert arguments[4] == "group"


@pytest.mark.parametrize("name", ["min_p", "logit_bias", "stop"])
def test_given_drafts_when_a_loop_asks_for_what_vllm_refuses_with_them_then_it_is_told_at_once(name: str) -> None:
    async def main(**options: bool) -> None:
        await world(**options).generate(**{name: "END"})

    with pytest.raises(ConfigError, match=rf"sampling_params.{name}=END: does not go with drafts"):
        simulate(main(drafts=True))
    simulate(main())


def test_given_a_turn_when_cancelled_at_any_await_or_at_two_then_nothing_leaks_and_it_resumes_from_its_tokens() -> None:
    async def main(points: frozenset[int]) -> int:
        it = world()
        turn = Suspensions(it.generate(), cancel_at=points)
        ending = await asyncio.create_task(ending_of(turn))
        assert isinstance(ending, asyncio.CancelledError) == bool(points)
        await it.is_quiet()
        assert_whole(await it.generate())
        return turn.count

    count = simulate(main(frozenset()))
    assert count >= 2
    for first in range(count):
        for second in range(first, first + 4):
            simulate(main(frozenset({first, second})))


@pytest.mark.parametrize("delivery_tok", [None, 1])
@pytest.mark.parametrize("after_s", [None, 0.0, 3 * LATENCY_S])
@at_each(GRID_S)
async def test_given_a_turn_when_cancelled_at_any_time_and_again_then_nothing_leaks_and_no_token_is_lost(
    after_s, delivery_tok, time_s: float
):
    it = world(delivery_tok=delivery_tok)
    task = asyncio.create_task(ending_of(it.generate()))
    cancel_at([time_s] if after_s is None else [time_s, time_s + after_s], task)
    ending = await ending_of(task)
    assert time_s >= DONE_S or isinstance(ending or task.result(), asyncio.CancelledError)
    await it.is_quiet()
    if time_s < DONE_S - LATENCY_S:  # stopped as soon as the abort has arrived, not run to its end
        assert len(it.trajectory.raw_response_ids) <= max(0.0, time_s - 2 * LATENCY_S)


@pytest.mark.parametrize("delivery_tok", [None, 1])
@pytest.mark.parametrize("pause_mode", ["abort", "keep"])
@at_each(GRID_S)
async def test_given_a_stop_at_any_time_then_the_turn_is_interrupted_and_goes_on_with_the_new_version(
    pause_mode, delivery_tok, time_s: float
):
    """Where requests stay in their engines, there, without another prefill."""
    it = world(pause_mode=pause_mode, delivery_tok=delivery_tok)
    frozen = await stopped_at(it, time_s)
    before_tok = len(it.trajectory.raw_response_ids)
    assert (await it.balancer.get_status())["total_inflight"] == len(frozen) <= (pause_mode == "keep")
    output = await it.generate()
    assert_whole(output)
    assert not frozen or it.recorder.reprefilled_tok == []
    after_tok = LENGTH_TOK - before_tok
    stamps = ((0, before_tok),) * (before_tok > 0) + ((1, after_tok),) * (after_tok > 0)
    assert it.trajectory.stamps == stamps
    assert output.extra_fields["min_global_steps"] == stamps[0][0]
    await it.is_quiet()


@at_each(GRID_S[:-2])
async def test_given_a_server_dies_at_any_time_then_the_turn_is_whole_on_the_other_one(time_s: float):
    it = world()
    asyncio.get_running_loop().call_at(time_s, it.handles["a"].kill)
    assert_whole(await it.generate())
    await asyncio.sleep(100)
    assert (await it.balancer.get_status())["total_inflight"] == 0
    assert len(it.servers["b"].generated) == (time_s < DONE_S)


async def test_given_a_call_that_wants_no_log_probs_then_it_gets_none_and_the_record_has_them() -> None:
    it = world()
    assert (await it.generate(logprobs=False)).log_probs is None
    assert_whole(await it.generate())  # answered from the record


@pytest.mark.parametrize("death_after_s", [-0.125, 0.0, 0.125, LATENCY_S, 1.0])
@at_each(GRID_S[3:-12])
async def test_given_a_cancelled_turn_when_its_server_dies_too_then_it_ends_and_generates_nowhere_else(
    death_after_s, time_s: float
):
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


async def test_given_a_server_that_ignores_aborts_when_cancelled_then_it_ends_as_cancelled_within_the_time_limit():
    it = World({"a": ScriptedServer(10_000, hangs=True)}, response_length=10_000)
    task = asyncio.create_task(ending_of(it.generate()))
    cancel_at([3.0], task)
    ending = await ending_of(task)
    assert isinstance(ending or task.result(), asyncio.CancelledError)
    assert now_s() <= 3 + CLEANUP_TIMEOUT_S + 1
    await settle()
    assert (await it.balancer.get_status())["total_inflight"] in (0, 1)
    await asyncio.sleep(1)
    assert (await it.balancer.get_status())["total_inflight"] == 0


async def test_given_a_token_budget_when_interrupted_and_resumed_then_all_segments_count_against_it() -> None:
    it = world()
    await stopped_at(it, LATENCY_S * 5 + 2.1, max_tokens=4)
    assert len(it.trajectory.raw_response_ids) == 2
    output = await it.generate(max_tokens=4)
    assert output.token_ids == ALL_TOKENS[:4]
    assert it.trajectory.turns[0].finish_reason == "length"
    await it.is_quiet()


async def test_given_a_limit_of_tokens_a_round_when_it_is_reached_then_the_turn_is_set_aside_and_goes_on_next_time():
    it = world()
    lens_tok = []
    for _ in range(5):
        turn = it.generate()
        it.recorder.round_limit_tok = 2
        ending = await ending_of(turn)
        lens_tok.append((len(it.trajectory.raw_response_ids), type(ending)))
    assert lens_tok[:3] == [(2, TrajectoryInterrupted), (4, TrajectoryInterrupted), (6, type(None))]
    assert it.trajectory.raw_response_ids == ALL_TOKENS
    await it.is_quiet()


@pytest.mark.parametrize("max_tokens", [0, -3])
async def test_given_a_loop_that_has_spent_its_budget_when_it_generates_then_it_gets_one_token_as_from_verl(max_tokens):
    it = world()
    assert (await it.generate(max_tokens=max_tokens)).token_ids == ALL_TOKENS[:1]


@at_each(GRID_S)
async def test_given_releases_that_overtake_their_requests_when_cancelled_at_any_time_then_no_lease_leaks(
    time_s: float,
):
    it = world(latency_s=lambda method: 1.0 if method == "lease" else 0.0)
    task = asyncio.create_task(ending_of(it.generate()))
    cancel_at([time_s], task)
    await ending_of(task)
    await it.is_quiet()


@at_each((0.0, 0.5, 1.0, 1.5))
async def test_given_an_abort_that_overtakes_its_request_when_cancelled_then_the_request_never_runs(time_s: float):
    it = world(latency_s=lambda method: 2.0 if method == "generate" else 0.0)
    task = asyncio.create_task(ending_of(it.generate()))
    cancel_at([time_s], task)
    assert isinstance(await task, asyncio.CancelledError)
    await it.is_quiet()
    assert it.trajectory.raw_response_ids == []


async def test_given_a_removal_that_is_slow_when_a_server_dies_then_the_turn_does_not_ask_it_again() -> None:
    it = world(latency_s=lambda method: 2.0 if method == "remove_servers" else 0.25)
    turn = asyncio.create_task(it.generate())
    await asyncio.sleep(2)
    (name,) = [name for name, server in it.servers.items() if server.running]
    it.handles[name].kill()
    assert_whole(await turn)
    assert [method for method, _, _ in it.handles[name].calls].count("generate") == 1


COUNTS = {
    "num_cached_tokens": 16,
    "spec_num_draft_tokens": 8,
    "spec_num_accepted_tokens": 5,
    "spec_num_verify_steps": 2,
}


@pytest.fixture
def telling_servers(monkeypatch) -> None:
    silent = ScriptedServer._output

    def output(self, request, stop_reason):
        told = silent(self, request, stop_reason)
        if stop_reason in ("completed", "aborted"):
            return replace(told, num_preempted=1, extra_fields=told.extra_fields | COUNTS)
        return told

    monkeypatch.setattr(ScriptedServer, "_output", output)


async def test_given_a_response_of_two_requests_when_it_is_whole_then_it_has_the_sum_of_their_counts(telling_servers):
    it = world()
    await stopped_at(it, 3.0)
    output = await it.generate()
    assert output.num_preempted == 2
    assert {name: output.extra_fields[name] for name in COUNTS} == {name: 2 * n for name, n in COUNTS.items()}


async def test_given_a_server_when_a_request_ends_then_its_last_output_has_what_vllm_says(monkeypatch) -> None:
    server = start_server(monkeypatch, ScriptedEngine(6), delivery_tok=4)
    params = {"max_tokens": 100, "logprobs": True}
    piece = await asyncio.create_task(server.generate([7], params, "request"))
    assert piece.stop_reason == "more" and "num_cached_tokens" not in piece.extra_fields
    last = await server.reattach("request")
    assert last.stop_reason == "completed" and last.extra_fields["num_cached_tokens"] == 0


def test_given_a_frozen_request_when_its_resumption_is_cancelled_at_every_await_then_nothing_is_lost_or_leaks() -> None:
    async def main(points: frozenset[int]) -> int:
        it = world(pause_mode="keep")
        assert len(await stopped_at(it, 3.0)) == 1
        resumption = Suspensions(it.generate(), cancel_at=points)
        ending = await asyncio.create_task(ending_of(resumption))
        assert isinstance(ending, asyncio.CancelledError) == bool(points)
        await asyncio.sleep(4 * LATENCY_S)
        running = sum(len(server.running) for server in it.servers.values())
        assert (await it.balancer.get_status())["total_inflight"] == running, "a request without a lease"
        [turn] = it.trajectory.turns
        assert running == (turn.attachment is not None)
        if turn.attachment is not None:
            it.client.abandon([turn.attachment])
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
