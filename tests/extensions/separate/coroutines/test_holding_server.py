"""The server of an engine that gets weights while others generate: what it holds goes on, the rest comes back."""

import asyncio
from random import Random
from typing import Any

import pytest

from recipe.async_dapo.extensions.separate.holding_server import HoldingServer

from ....support.scripted_engine import ScriptedEngine, start_server
from ....support.server_callers import LENGTH_TOK, Callers, generate
from ....support.simulation import at_each


class HeldCallers(Callers):
    server: HoldingServer
    server_class = HoldingServer

    async def _stop(self, mode: str) -> None:
        await self.server.stop_generation(mode)

    async def _open(self) -> None:
        await self.random.choice([self.server.allow_generation, self.server.go_on])()


@pytest.mark.slow
@pytest.mark.parametrize("stream_interval", [1, 2, 4])
@at_each(range(60))
async def test_given_any_requests_aborts_stops_and_versions_then_each_token_is_delivered_once_and_a_stop_holds(
    monkeypatch, stream_interval, number: int
) -> None:
    random = Random(f"{number} {stream_interval}")
    modes = random.choice([["abort"], ["hold"], ["hold", "abort"]])
    await HeldCallers(monkeypatch, random, stream_interval=stream_interval).live(modes)


async def test_given_a_stop_while_an_engine_is_told_to_go_on_then_nothing_more_is_let_in(monkeypatch) -> None:
    """No event of the property comes in the middle of that call."""
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine, HoldingServer)
    await server.stop_generation("hold")

    async def resume_slowly() -> None:
        await asyncio.sleep(1)

    monkeypatch.setattr(engine, "resume_generation", resume_slowly)
    going_on = asyncio.create_task(server.go_on())
    await asyncio.sleep(0.5)
    await server.stop_generation("hold")
    await going_on
    assert (await generate(server)).stop_reason == "aborted"


@pytest.mark.parametrize("pause_s", [0.0, 0.2])
async def test_given_requests_that_are_held_when_all_are_aborted_then_one_that_is_being_admitted_is_not_waited_for(
    monkeypatch, pause_s: float
) -> None:
    """The engine, which takes no step, would never give its first token."""
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine, HoldingServer)
    pause = engine.pause_generation

    async def pause_slowly(**options: Any) -> None:
        await asyncio.sleep(pause_s)
        await pause(**options)

    monkeypatch.setattr(engine, "pause_generation", pause_slowly)
    held = generate(server, "held")
    await asyncio.sleep(3)
    admitted = generate(server, "admitted")
    await asyncio.sleep(0.01)
    holding = asyncio.create_task(server.stop_generation("hold"))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(5):
        await server.stop_generation("abort")
        await holding
    assert [len((await task).token_ids) for task in (held, admitted)] == [2, 0]
    assert not engine.core
    await server.go_on()
    assert (await generate(server, "next")).stop_reason == "completed"
