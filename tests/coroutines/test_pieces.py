"""Deliveries in pieces: a request that dies with its server has lost a piece at most, and nothing is lost otherwise."""

import asyncio
from itertools import groupby

import pytest

from ..support.client_world import World
from ..support.fakes import ScriptedServer, token_at
from ..support.scripted_engine import ScriptedEngine, start_server

PIECE_TOK = 4
TOKEN_S = 1.0
ROUND_TRIP_S = 0.5


@pytest.mark.parametrize("death_s", [k + 0.6 for k in range(5, 60, 5)])
async def test_given_a_server_that_dies_then_at_most_a_piece_is_lost_beside_what_was_on_its_way(death_s: float) -> None:
    servers = {name: ScriptedServer(100, token_s=TOKEN_S, delivery_tok=PIECE_TOK) for name in "ab"}
    it = World(servers)
    turn = asyncio.create_task(it.generate())
    await asyncio.sleep(death_s)
    [(name, request)] = [(name, r) for name, server in servers.items() for r in server.running.values()]
    it.handles[name].kill()
    await asyncio.sleep(0.01)
    lost_tok = len(request.token_ids) - it.trajectory.generated_tok
    assert 0 <= lost_tok <= PIECE_TOK + ROUND_TRIP_S / TOKEN_S
    output = await turn
    assert output.token_ids == [token_at([7], k) for k in range(100)]


@pytest.mark.parametrize("stream_interval", [1, 2])
async def test_given_our_server_then_pieces_hold_each_token_once_with_its_version(monkeypatch, stream_interval) -> None:
    engine = ScriptedEngine(20, stream_interval=stream_interval)
    server = start_server(monkeypatch, engine, delivery_tok=PIECE_TOK)
    output = await server.generate([7], {"max_tokens": 100, "logprobs": True}, "request")
    outputs = [output]
    while output.stop_reason == "more":
        server.global_steps += 1
        output = await server.reattach("request")
        outputs.append(output)
    token_ids = [token for output in outputs for token in output.token_ids]
    assert token_ids == engine.sampled["request"] and len(outputs) > 3
    assert all(len(output.token_ids) <= PIECE_TOK + stream_interval for output in outputs)
    versions = [version for output in outputs for version, _ in output.extra_fields["segments"]]
    assert [version for version, _ in groupby(versions)] == sorted(set(versions))
    assert (output.stop_reason, output.extra_fields["finish_reason"]) == ("completed", "stop")
