"""The client: whatever is cancelled, stopped or dies, no lease leaks and no token is lost or made up."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.trajectory import Trajectory
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancer
from recipe.async_dapo.recording import TrajectoryInterrupted, TrajectoryRecorder, current_recorder
from recipe.async_dapo.runtime.actor_watch import ActorDied

from ..support.client_world import (
    ALL_TOKENS,
    CLEANUP_TIMEOUT_S,
    DONE_S,
    LATENCY_S,
    LENGTH_TOK,
    PROMPT,
    World,
    assert_whole,
    cancel_at,
    ending_of,
    llm_client,
    stopped_at,
    world,
)
from ..support.fakes import FakeHandle, ScriptedServer, token_at
from ..support.router import router_options
from ..support.scripted_engine import ScriptedEngine, start_server
from ..support.simulation import Suspensions, at_each, now_s, settle, simulate


async def test_a_turn_costs_a_call_for_its_lease_and_an_unawaited_one_to_return_it_and_none_from_the_record():
    it = world()
    output = await it.generate()
    assert_whole(output)
    assert now_s() == pytest.approx(DONE_S)
    assert output.extra_fields == {"global_steps": 0, "min_global_steps": 0, "max_global_steps": 0}
    assert output.num_preempted is None, "these servers do not say"
    await it.is_quiet()
    assert (await it.generate()).token_ids == output.token_ids
    assert [method for method, _, _ in it.balancer_handle.calls] == ["exchange", "server", "exchange"]
    await it.client.generate("request", prompt_ids=[8], sampling_params={"logprobs": True})
    await settle()
    assert [method for method, _, _ in it.balancer_handle.calls[3:]] == ["exchange", "exchange"]


async def test_given_a_parameter_that_an_extension_refuses_when_a_loop_asks_for_it_then_it_is_told_at_once() -> None:
    it = world(refused={"min_p": "does not go with this; leave it out"})
    with pytest.raises(ConfigError, match=r"^sampling_params\.min_p=END: does not go with this; leave it out$"):
        await it.generate(min_p="END")
    assert_whole(await it.generate(min_p=None))


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


LATENCIES: list[float | Callable[[str], float]] = [
    LATENCY_S,
    LATENCY_S,
    lambda method: 1.0 if method == "lease" else 0.0,  # a release overtakes its request,
    lambda method: 2.0 if method == "generate" else 0.0,  # and an abort
    lambda method: 2.0 if method == "look_after_servers" else LATENCY_S,
]


@at_each(range(150))
async def test_given_any_events_at_any_time_then_the_turn_is_whole_in_the_end_and_nothing_leaks(number: int) -> None:
    """Cancellations, stops with new weights, deaths and broken connections, of which several may fall together."""
    random = Random(number)
    kinds = random.choice([["cancel"], ["stop"], ["cancel", "stop"], ["cut"], ["cancel", "stop", "kill", "cut"]])
    delivery_tok, latency_s = random.choice([None, 1, 4]), random.choice(LATENCIES)
    it = world(delivery_tok=delivery_tok, latency_s=latency_s, routes=True)
    ending: BaseException | None = asyncio.CancelledError()
    version = 0
    while ending is not None:
        turn = asyncio.create_task(ending_of(it.generate()))
        events = random.choices(kinds, k=random.randint(0, 3)) if version < 9 else []
        for event in events:
            await asyncio.sleep(random.choice([0.0, random.uniform(0.0, DONE_S), random.uniform(0.0, DONE_S / 3)]))
            match event:
                case "cancel":
                    turn.cancel()
                case "stop":
                    await it.balancer_handle.stop.remote()
                case "kill" if not any(handle.is_dead for handle in it.handles.values()):
                    it.handles[random.choice("ab")].kill()
                case "cut":
                    it.handles[random.choice("ab")].cut_off(random.choice([0.1, 0.5, 2.5]))
        ended_s = now_s()
        ending = await ending_of(turn) or turn.result()
        if "cancel" in events and isinstance(ending, asyncio.CancelledError):
            assert now_s() <= ended_s + 10
        assert ending is None or isinstance(ending, asyncio.CancelledError)
        assert not isinstance(ending, TrajectoryInterrupted) or "stop" in events
        if "stop" in events:
            version += 1
            await asyncio.sleep(1)
            for server in it.servers.values():
                server.global_steps = version
            await it.balancer_handle.open.remote()
        version += not events
    stamps = [stamp for stamp, count in it.trajectory.stamps for _ in range(count)]
    assert stamps == sorted(stamps) and it.trajectory.generated_tok == LENGTH_TOK
    assert_whole(output := await it.generate())
    # The last request has read its context at once, and each further token before it sampled the next one.
    first = stamps.index(stamps[-1])
    read_by = [*enumerate([stamps[first]] * first + stamps[first:])]
    assert [(place, version) for [[place, version]] in output.routed_experts.tolist()] == read_by
    await asyncio.sleep(100 + CLEANUP_TIMEOUT_S)
    status = await it.balancer.get_status()
    assert (status["total_inflight"], status["queued"]) == (0, 0)
    living = [it.servers[name] for name, handle in it.handles.items() if not handle.is_dead]
    assert not any(server.running for server in living)
    if kinds in (["cancel"], ["stop"]):
        generated = [len(tokens) for server in living for tokens in server.generated.values()]
        assert sum(generated) == LENGTH_TOK, "a token was lost, and generated again"


PIECE_TOK = 4


@pytest.mark.parametrize("death_s", [k + 0.6 for k in range(5, 60, 5)])
async def test_given_a_server_that_dies_then_at_most_a_piece_is_lost_beside_what_was_on_its_way(death_s: float) -> None:
    servers = {name: ScriptedServer(100, delivery_tok=PIECE_TOK) for name in "ab"}
    it = World(servers)
    turn = asyncio.create_task(it.generate())
    await asyncio.sleep(death_s)
    [(name, request)] = [(name, r) for name, server in servers.items() for r in server.running.values()]
    it.handles[name].kill()
    await asyncio.sleep(0.01)
    lost_tok = len(request.token_ids) - it.trajectory.generated_tok
    assert 0 <= lost_tok <= PIECE_TOK + 2 * LATENCY_S
    output = await turn
    assert output.token_ids == [token_at(PROMPT, k) for k in range(100)]


async def test_given_a_call_that_wants_no_log_probs_then_it_gets_none_and_the_record_has_them() -> None:
    it = world()
    assert (await it.generate(logprobs=False)).log_probs is None
    assert_whole(await it.generate())  # answered from the record


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


async def test_given_a_request_that_its_engine_ends_with_an_error_then_what_it_has_is_no_answer() -> None:
    class Failing(ScriptedServer):
        def _output(self, request: Any, stop_reason: str) -> Any:
            output = super()._output(request, stop_reason)
            if stop_reason != "completed":
                return output
            return replace(output, stop_reason="error", extra_fields=output.extra_fields | {"finish_reason": "error"})

    it = World({"a": Failing(LENGTH_TOK)})
    with pytest.raises(RuntimeError, match="has ended a request with an error"):
        await it.generate()
    await it.is_quiet()


async def test_given_a_token_budget_when_interrupted_and_resumed_then_all_segments_count_against_it() -> None:
    it = world()
    await stopped_at(it, LATENCY_S * 5 + 2.1, max_tokens=4)
    assert len(it.trajectory.raw_response_ids) == 2
    output = await it.generate(max_tokens=4)
    assert output.token_ids == ALL_TOKENS[:4]
    assert it.trajectory.turns[0].finish_reason == "length"
    await it.is_quiet()


@pytest.mark.parametrize("own", [{}, {"max_tokens": 100}, {"max_new_tokens": 100}])
async def test_given_a_context_that_ends_before_the_turn_s_budget_then_the_turn_ends_with_it_in_whatever_round(own):
    it = world()
    it.client.context_tok = len(PROMPT) + 4
    for _ in range(2):
        turn = it.generate(**own)
        it.recorder.round_left_tok = 3
        ending = await ending_of(turn)
    assert ending is None and it.trajectory.raw_response_ids == ALL_TOKENS[:4]
    assert it.trajectory.turns[0].finish_reason == "length"
    await it.is_quiet()


@pytest.mark.parametrize("max_tokens", [0, -3])
async def test_given_a_loop_that_has_spent_its_budget_when_it_generates_then_it_gets_one_token_as_from_verl(max_tokens):
    it = world()
    assert (await it.generate(max_tokens=max_tokens)).token_ids == ALL_TOKENS[:1]


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


@pytest.mark.parametrize("has_old_kv", [False, True])
async def test_given_old_kv_when_a_request_is_continued_then_it_says_which_version_began_it_and_counts_what_is_found(
    telling_servers, has_old_kv
):
    it = world()
    it.client = llm_client(it.balancer_handle, continues=True, has_old_kv=has_old_kv)
    await stopped_at(it, 3.0)
    before_tok = it.trajectory.generated_tok
    await it.generate()
    asked = [kwargs for handle in it.handles.values() for name, _, kwargs in handle.calls if name == "generate"]
    assert sorted(kwargs.get("began", -1) for kwargs in asked) == ([-1, 0] if has_old_kv else [-1, -1])
    counts = it.recorder.counts
    assert counts.found_tok == COUNTS["num_cached_tokens"]
    assert counts.reprefilled_tok == len(PROMPT) + before_tok - counts.found_tok


@pytest.mark.parametrize("gathers_groups", [False, True])
async def test_given_old_kv_when_loops_run_again_then_their_requests_go_to_the_servers_that_had_them(gathers_groups):
    it = world()
    options = router_options(4, keeps_kv=True, gathers_groups=gathers_groups)
    balancer = FakeHandle(GlobalLoadBalancer(it.handles, options), latency_s=LATENCY_S)
    client = llm_client(balancer, continues=True, has_old_kv=True)
    trajectories = [Trajectory(session_id=k) for k in range(6)]
    names = map(str, count())

    async def generate(trajectory: Trajectory) -> None:
        current_recorder.set(TrajectoryRecorder(trajectory=trajectory, prompt_uid=f"group {trajectory.session_id}"))
        await ending_of(client.generate(next(names), prompt_ids=[trajectory.session_id], sampling_params={}))

    for order in ([0, 1, 2, 3, 4, 5], [0, 2, 4, 1, 3, 5], [5, 1, 3, 0, 2, 4]):
        tasks = [asyncio.create_task(generate(trajectories[k])) for k in order]
        await asyncio.sleep(3)
        await balancer.stop.remote()
        await asyncio.gather(*tasks)
        await balancer.open.remote()
    at = [
        [kwargs["prompt_ids"][0] for name, _, kwargs in handle.calls if name == "generate"]
        for handle in it.handles.values()
    ]
    assert [len(each) for each in at] == [9, 9] and [len(set(each)) for each in at] == [3, 3], at


async def test_given_a_server_when_a_request_ends_then_its_last_output_has_what_vllm_says(monkeypatch) -> None:
    server = start_server(monkeypatch, ScriptedEngine(6), delivery_tok=4)
    params = {"max_tokens": 100, "logprobs": True}
    piece = await asyncio.create_task(server.generate([7], params, "request"))
    assert piece.stop_reason == "more" and "num_cached_tokens" not in piece.extra_fields
    last = await server.reattach("request")
    assert last.stop_reason == "completed" and last.extra_fields["num_cached_tokens"] == 0


async def test_given_a_load_balancer_that_is_dead_then_the_error_says_so() -> None:
    it = world()
    it.balancer_handle.kill()
    with pytest.raises(ActorDied, match="the load balancer is gone"):
        await it.generate()


async def test_given_a_load_balancer_that_is_cut_off_when_a_request_ends_then_its_lease_comes_back_later() -> None:
    it = world()
    asyncio.get_running_loop().call_at(5.0, it.balancer_handle.cut_off, 5.0)
    assert_whole(await it.generate())
    await it.is_quiet()
