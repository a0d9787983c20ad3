"""The server on vLLM's own output processor: what comes back is what was sampled, and nothing goes on after a stop."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from verl.workers.rollout.replica import RolloutMode, TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

from recipe.async_dapo.engines import server as server_module
from recipe.async_dapo.engines.server import AsyncDAPOServer

from ..support.fakes import log_prob_of, token_at
from ..support.scripted_engine import ScriptedEngine, start_server
from ..support.simulation import at_each, now_s, settle

LENGTH_TOK = 9
GRID_S = [0.0, 0.1, 0.3, *(k + fraction for k in range(11) for fraction in (0.2, 0.25, 0.6))]
INTERVALS = pytest.mark.parametrize("stream_interval", [1, 2, 4])


def generate(server: AsyncDAPOServer, request_id: str = "request", **params: Any) -> asyncio.Task[TokenOutput]:
    params = {"max_tokens": 100, "logprobs": True, **params}
    return asyncio.create_task(server.answer("generate", [7], params, request_id), name="remote generate")


def assert_is_what_was_sampled(output: TokenOutput, sampled: list[int], *, delivered_before: int = 0) -> None:
    """Tokens that the front end had when the request ended; a token may have been in the engine core still."""
    expected = sampled[delivered_before:]
    assert output.token_ids == expected[: len(output.token_ids)]
    assert output.log_probs == pytest.approx([log_prob_of(token) for token in output.token_ids])
    assert sum(count for _, count in output.extra_fields["segments"]) == len(output.token_ids)


@INTERVALS
async def test_given_a_request_when_it_ends_by_itself_then_every_token_is_delivered_once(monkeypatch, stream_interval):
    engine = ScriptedEngine(LENGTH_TOK, stream_interval=stream_interval)
    output = await generate(start_server(monkeypatch, engine))
    assert output.token_ids == [token_at([7], k) for k in range(LENGTH_TOK)]
    assert_is_what_was_sampled(output, engine.sampled["request"])
    assert (output.stop_reason, output.extra_fields["finish_reason"]) == ("completed", "stop")
    assert output.extra_fields["segments"] == [(0, LENGTH_TOK)]


@INTERVALS
@at_each(GRID_S)
async def test_given_a_stop_at_any_time_then_every_request_comes_back_at_once_with_what_was_delivered(
    monkeypatch, stream_interval, stop_s: float
):
    engine = ScriptedEngine(LENGTH_TOK, stream_interval=stream_interval)
    server = start_server(monkeypatch, engine)
    calls = []
    for k in range(4):
        calls.append(generate(server, f"request-{k}"))
        await asyncio.sleep(0.3)
    await asyncio.sleep(max(0.0, stop_s - now_s()))
    await server.stop_generation()
    assert now_s() <= max(stop_s, 1.2) + 0.25 + 1  # at worst: admission and the first token
    await settle()
    assert not engine.core and all(call.done() for call in calls)
    for k, call in enumerate(calls):
        output = call.result()
        assert_is_what_was_sampled(output, engine.sampled.get(f"request-{k}", []))
        is_whole = len(output.token_ids) == LENGTH_TOK
        assert output.stop_reason == ("completed" if is_whole else "aborted")
    assert (await generate(server, "late")).stop_reason == "aborted"
    await server.allow_generation()
    assert (await generate(server, "later")).stop_reason == "completed"


async def test_given_an_engine_core_that_hangs_when_its_server_is_pinged_then_there_is_no_answer(monkeypatch) -> None:
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    await server.ping()
    monkeypatch.setattr(engine, "is_sleeping", asyncio.Event().wait)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(server.ping(), 60)


@INTERVALS
@at_each(GRID_S[:-3])
async def test_given_an_abort_of_one_request_at_any_time_then_it_alone_comes_back(
    monkeypatch, stream_interval, abort_s: float
):
    engine = ScriptedEngine(LENGTH_TOK, stream_interval=stream_interval)
    server = start_server(monkeypatch, engine)
    aborted, other = generate(server, "aborted"), generate(server, "other")
    await asyncio.sleep(abort_s)
    await server.abort_requests(["aborted", "unknown"])
    output = await aborted
    assert now_s() <= max(abort_s, 1.25) + 1e-3  # not at its own end
    assert_is_what_was_sampled(output, engine.sampled["aborted"])
    assert output.stop_reason == ("completed" if len(output.token_ids) == LENGTH_TOK else "aborted")
    assert len((await other).token_ids) == LENGTH_TOK


@at_each(GRID_S)
async def test_given_a_pause_at_any_time_when_weights_change_then_requests_go_on_and_every_token_has_its_own_version(
    monkeypatch, pause_s: float
):
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    call = generate(server)
    await asyncio.sleep(pause_s)
    await server.stop_generation("keep")
    await settle()
    first = await call
    before_tok = len(engine.sampled.get("request", []))
    await asyncio.sleep(100)
    assert len(engine.sampled.get("request", [])) == before_tok, "a frozen engine went on"
    await server.set_global_steps(1)
    await server.allow_generation()
    if first.stop_reason == "completed":
        assert len(first.token_ids) == LENGTH_TOK
        return
    if not before_tok:
        assert (first.stop_reason, first.token_ids) == ("aborted", [])
        await asyncio.sleep(100)
        assert not engine.core, "nobody will fetch it"
        return
    assert first.stop_reason == "paused"
    second = await server.reattach("request")
    assert first.token_ids + second.token_ids == [token_at([7], k) for k in range(LENGTH_TOK)]
    assert_is_what_was_sampled(second, engine.sampled["request"], delivered_before=before_tok)
    stamps = first.extra_fields["segments"] + second.extra_fields["segments"]
    assert stamps == [(0, before_tok)] * (before_tok > 0) + [(1, LENGTH_TOK - before_tok)]
    assert (await server.reattach("request")).stop_reason == "unknown"


@at_each(GRID_S)
async def test_given_a_hold_at_any_time_when_weights_change_then_a_request_goes_on_and_its_caller_knows_nothing_of_it(
    monkeypatch, hold_s: float
) -> None:
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    call = generate(server)
    await asyncio.sleep(hold_s)
    await server.stop_generation("hold")
    before_tok = len(engine.sampled.get("request", []))
    late = await generate(server, "late")
    assert late.stop_reason == "aborted"
    await asyncio.sleep(100)
    await server.set_global_steps(1)
    await server.go_on()
    output = await call
    if not before_tok:
        assert (output.stop_reason, output.token_ids) == ("aborted", [])
        await asyncio.sleep(100)
        assert not engine.core
        return
    assert output.token_ids == [token_at([7], k) for k in range(LENGTH_TOK)]
    stamps = [(0, before_tok), (1, LENGTH_TOK - before_tok)]
    assert output.extra_fields["segments"] == [stamp for stamp in stamps if stamp[1]]


async def test_given_a_hold_when_the_round_stops_meanwhile_then_callers_are_told_and_the_engine_stays_frozen(
    monkeypatch,
):
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    call = generate(server)
    await asyncio.sleep(4)
    await server.stop_generation("hold")
    await server.stop_generation("keep")
    first = await call
    assert first.stop_reason == "paused"
    await asyncio.sleep(100)
    await server.go_on()
    second = await server.reattach("request")
    assert first.token_ids + second.token_ids == [token_at([7], k) for k in range(LENGTH_TOK)]


async def test_given_a_stop_while_an_engine_is_told_to_go_on_then_nothing_more_is_let_in(monkeypatch) -> None:
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    await server.stop_generation("hold")

    async def resume_slowly() -> None:
        await asyncio.sleep(1)

    monkeypatch.setattr(engine, "resume_generation", resume_slowly)
    going_on = asyncio.create_task(server.go_on())
    await asyncio.sleep(0.5)
    await server.stop_generation("hold")
    await going_on
    assert (await generate(server)).stop_reason == "aborted"


async def test_given_an_abort_that_comes_before_its_request_then_the_request_never_reaches_the_engine(monkeypatch):
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    await server.abort_requests(["request"])
    assert (await generate(server)).stop_reason == "aborted"
    assert (await generate(server, "other")).stop_reason == "completed"
    assert list(engine.sampled) == ["other"]


async def test_given_a_frozen_request_when_it_is_forgotten_then_it_leaves_the_engine(monkeypatch) -> None:
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    call = generate(server)
    await asyncio.sleep(4)
    await server.stop_generation("keep")
    assert (await call).stop_reason == "paused"
    await server.abort_requests(["request"], forget=True)
    await server.allow_generation()
    await asyncio.sleep(10)
    assert not engine.core and len(engine.sampled["request"]) <= 4
    assert (await server.reattach("request")).stop_reason == "unknown"
    await server.stop_generation()
    assert not engine.core


async def test_given_two_policy_versions_when_generating_then_no_request_shares_cached_prefixes_with_the_other(
    monkeypatch,
) -> None:
    engine = ScriptedEngine(2)
    server = start_server(monkeypatch, engine)
    await generate(server, "old")
    await server.set_global_steps(1)
    await generate(server, "new")
    assert len(set(engine.salts)) == 2


async def test_given_no_request_when_stopped_then_it_returns_at_once(monkeypatch) -> None:
    server = start_server(monkeypatch, ScriptedEngine(2))
    await server.stop_generation()
    assert now_s() == 0


async def test_given_an_engine_that_dies_when_requests_are_out_or_come_later_then_the_server_ends_with_it(monkeypatch):
    class Exited(Exception):
        pass

    def end(dead: str) -> None:
        raise Exited

    monkeypatch.setattr("recipe.async_dapo.engines.server._end", end)
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    call = generate(server)
    await asyncio.sleep(3)
    engine.die()
    for ended in (call, generate(server, "later")):
        with pytest.raises(Exited):
            await ended


@pytest.mark.parametrize(
    ("mode", "is_policy", "scraped", "node", "listens_on"),
    [
        (RolloutMode.HYBRID, True, False, "10.0.0.7", "127.0.0.1"),
        (RolloutMode.HYBRID, True, False, "fd00::7", "::1"),
        (RolloutMode.HYBRID, True, True, "10.0.0.7", "10.0.0.7"),
        (RolloutMode.STANDALONE, True, False, "10.0.0.7", "127.0.0.1"),
        (RolloutMode.STANDALONE, False, False, "10.0.0.7", "10.0.0.7"),  # a reward model: asked over HTTP
    ],
)
def test_given_an_engine_when_it_starts_then_its_endpoint_is_on_loopback_unless_others_ask_it(
    monkeypatch, mode, is_policy, scraped, node, listens_on
) -> None:
    bound = []

    async def run_server(self: vLLMHttpServer, args: object) -> None:
        bound.append(self._server_address)
        self._server_port = 8000

    async def main() -> None:
        engine = ScriptedEngine(1)
        server = start_server(monkeypatch, engine)
        server.rollout_mode, server._server_address = mode, node
        if not is_policy:
            server.config.custom = None
        server.config.prometheus = SimpleNamespace(enable=scraped)
        await server.run_server(None)
        assert server.get_server_address() == (node, 8000), "the server has another name"

    monkeypatch.setattr(vLLMHttpServer, "run_server", run_server)
    monkeypatch.setattr(server_module.LoadMeter, "attach", lambda engine: None)
    asyncio.run(main())
    assert bound == [listens_on]
