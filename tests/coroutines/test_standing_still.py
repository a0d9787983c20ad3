"""An engine that answers calls and yields no token, on vLLM's own output processor: it is lost, its requests go on."""

import asyncio

import pytest

from recipe.async_dapo.core.trajectory import Turn
from recipe.async_dapo.engines.engine_requests import EngineRequests
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancer

from ..support.fakes import FakeHandle, token_at
from ..support.router import router_options
from ..support.scripted_engine import ScriptedEngine, start_server

LENGTH_TOK, LOOK_S = 9, 60.0
LIMIT_S = 5 * 120.0  # of the scripted engine's options


class World:
    """Two engines behind a load balancer, which looks after them as a round does, and eight requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, token_s: float = 1.0) -> None:
        self.engines = {name: ScriptedEngine(LENGTH_TOK, token_s=token_s) for name in "ab"}
        handles = {
            name: FakeHandle(start_server(monkeypatch, engine, delivery_tok=1)) for name, engine in self.engines.items()
        }
        self.balancer = GlobalLoadBalancer(handles, router_options(4))
        self.requests = EngineRequests(FakeHandle(self.balancer), cleanup_timeout_s=60.0)
        self.turns = [Turn(prompt_digest=b"", prompt_len_tok=1) for _ in range(8)]
        self.answers = [asyncio.create_task(self._answer(k)) for k in range(8)]

    async def _answer(self, number: int) -> None:
        turn = self.turns[number]
        while turn.finish_reason is None and turn.generated_tok < LENGTH_TOK:
            context = [number, *turn.raw_response_ids]
            params = {"max_tokens": LENGTH_TOK - turn.generated_tok, "logprobs": True}
            if not await self.requests.advance(turn, f"request-{number}", context, params, {}):
                await asyncio.sleep(1.0)

    async def look_after(self, seconds: float) -> None:
        for _ in range(int(seconds / LOOK_S)):
            await asyncio.sleep(LOOK_S)
            await self.balancer.look_after_servers()

    async def check_answers(self) -> None:
        async with asyncio.timeout(10 * LIMIT_S):
            await asyncio.gather(*self.answers)
        for number, turn in enumerate(self.turns):
            assert turn.raw_response_ids == [token_at([number], k) for k in range(LENGTH_TOK)]


async def test_given_an_engine_that_stands_still_then_it_is_lost_and_its_requests_go_on_in_another(monkeypatch) -> None:
    world = World(monkeypatch)
    await asyncio.sleep(3.5)
    world.engines["a"]._is_running.clear()  # its core answers pings, and takes no step
    await world.look_after(LIMIT_S)
    assert not await world.balancer.lost_engines(), "too early"
    await world.look_after(2 * LOOK_S)
    assert (await world.balancer.lost_engines()) == {
        "a": "a answers, but has yielded no token for 660 s, with 4 requests in flight"
    }
    await world.check_answers()
    world.engines["a"]._is_running.set()  # so that nothing is left of it
    await asyncio.sleep(LENGTH_TOK)


@pytest.mark.slow
@pytest.mark.parametrize("pause_s", [0.0, 3 * LIMIT_S])
async def test_given_a_slow_engine_or_one_that_has_been_stopped_for_long_then_it_is_not_lost(monkeypatch, pause_s):
    world = World(monkeypatch, token_s=0.9 * LIMIT_S)
    await world.look_after(LIMIT_S)
    await world.balancer.stop()
    await world.look_after(pause_s)
    await world.balancer.open()
    await world.look_after(12 * LIMIT_S)
    assert not await world.balancer.lost_engines()
    await world.check_answers()
