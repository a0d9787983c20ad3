"""The server on vLLM's own output processor: what comes back is what was sampled, and nothing goes on after a stop."""

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
from vllm.platforms.interface import DeviceCapability

from recipe.async_dapo.core.concurrency import EngineLoad
from recipe.async_dapo.engines import started_server
from recipe.async_dapo.engines.load_meter import LoadMeter
from recipe.async_dapo.weights.stream import CUSTOM_OPTIONS

from ..support.scripted_engine import ScriptedEngine, start_server
from ..support.server_callers import LENGTH_TOK, Callers, generate
from ..support.simulation import at_each


@pytest.mark.slow
@pytest.mark.parametrize("stream_interval", [1, 2, 4])
@at_each(range(60))
async def test_given_any_requests_aborts_stops_and_versions_then_each_token_is_delivered_once_and_a_stop_holds(
    monkeypatch, stream_interval, number: int
) -> None:
    random = Random(f"{number} {stream_interval}")
    await Callers(monkeypatch, random, stream_interval=stream_interval).live(["abort"])


async def test_given_an_engine_core_that_hangs_when_its_server_is_pinged_then_there_is_no_answer(monkeypatch) -> None:
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    await server.ping()
    monkeypatch.setattr(engine, "is_sleeping", asyncio.Event().wait)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(server.ping(), 60)


async def test_given_two_policy_versions_when_generating_then_no_request_shares_cached_prefixes_with_the_other(
    monkeypatch,
) -> None:
    engine = ScriptedEngine(2)
    server = start_server(monkeypatch, engine)
    await generate(server, "old")
    await server.set_global_steps(1)
    await generate(server, "new")
    await server.generate([7], {"max_tokens": 1, "logprobs": True}, "of an old trajectory", began=0)
    assert engine.salts[0] == engine.salts[2] != engine.salts[1]


async def test_given_an_engine_that_dies_when_requests_are_out_or_come_later_then_the_server_ends_with_it(monkeypatch):
    class Exited(Exception):
        pass

    def end(dead: str) -> None:
        raise Exited

    monkeypatch.setattr("recipe.async_dapo.engines.started_server._end", end)
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
        server.rollout_mode, server._server_address, server.replica_rank = mode, node, 1
        if not is_policy:
            server.config.custom = None
        server.config.prometheus = SimpleNamespace(enable=scraped)
        await server.run_server(None)
        assert server.get_server_address() == (node, 8000), "the server has another name"

    monkeypatch.setattr(vLLMHttpServer, "run_server", run_server)
    monkeypatch.setattr(started_server.LoadMeter, "attach", lambda engine: None)
    asyncio.run(main())
    assert bound == [listens_on]


@pytest.mark.parametrize(("told", "level"), [({}, 2), ({"keeps_weights": False}, 2), ({"keeps_weights": True}, 1)])
def test_an_engine_keeps_its_weights_when_it_sleeps_if_it_is_told_to(monkeypatch, told, level) -> None:
    server = start_server(monkeypatch, ScriptedEngine(1))
    server.config.custom[CUSTOM_OPTIONS] |= told
    assert server._resolve_sleep_level() == level


class CountingMeter(LoadMeter):
    """Reports how many loads it was asked for."""

    asked = 0

    @classmethod
    def attach(cls, engine: object) -> "CountingMeter":
        return cls.__new__(cls)

    def load(self) -> EngineLoad:
        self.asked += 1
        return EngineLoad(kv_room_tok=self.asked, max_num_seqs=1)


async def test_a_server_attaches_the_meter_that_it_is_told_and_says_at_a_stop_what_that_reports(monkeypatch) -> None:
    async def run_server(self: vLLMHttpServer, args: object) -> None:
        pass

    monkeypatch.setattr(vLLMHttpServer, "run_server", run_server)
    server = start_server(monkeypatch, ScriptedEngine(1))
    server._server_address, server.replica_rank, server.rollout_mode = "10.0.0.7", 1, RolloutMode.HYBRID
    server.config.custom[CUSTOM_OPTIONS]["meter"] = f"{__name__}.{CountingMeter.__name__}"
    server.config.prometheus = SimpleNamespace(enable=False)
    await server.run_server(None)
    assert isinstance(server._meter, CountingMeter)
    assert await server.stop_generation() == EngineLoad(kv_room_tok=1, max_num_seqs=1)


class AdaptedEngine(ScriptedEngine):
    """Has an adapter from the first update on."""

    asked = 0

    async def list_loras(self) -> set[int]:
        self.asked += 1
        await asyncio.sleep(0.1)
        return {123} if self.policy_version else set()


async def test_given_many_requests_then_an_engine_is_asked_for_its_adapters_once_an_update(monkeypatch) -> None:
    engine = AdaptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    assert await server.engine.list_loras() == set() == await server.engine.list_loras()
    assert engine.asked == 2, "the adapter may come while the version is the same"
    for version in (1, 2):
        engine.policy_version = server.global_steps = version
        found = await asyncio.gather(*(server.engine.list_loras() for _ in range(50)))
        assert found == [{123}] * 50 and await server.engine.list_loras() == {123}
    assert engine.asked == 4


@pytest.mark.parametrize(
    ("capability", "experts", "packs"), [((10, 0), 8, True), ((9, 0), 8, False), ((10, 0), 0, False)]
)
def test_experts_on_blackwell_keep_the_layout_that_weights_are_loaded_into(monkeypatch, capability, experts, packs):
    monkeypatch.setattr(started_server.current_platform, "get_device_capability", lambda: DeviceCapability(*capability))
    server = start_server(monkeypatch, ScriptedEngine(LENGTH_TOK))
    text = SimpleNamespace(num_experts=experts)
    server.model_config.hf_config = SimpleNamespace(get_text_config=lambda: text)
    given: dict[str, Any]
    for given in ({}, {"moe_backend": None}, {"moe_backend": "auto"}):
        arguments = given.copy()
        server._preprocess_engine_kwargs(arguments)
        assert arguments == ({"moe_backend": "triton"} if packs else given)


def test_the_first_engine_says_in_a_line_what_it_is() -> None:
    config = SimpleNamespace(
        use_v2_model_runner=True,
        scheduler_config=SimpleNamespace(async_scheduling=True),
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=[1, 2, 4]),
        cache_config=SimpleNamespace(cache_dtype="auto"),
    )
    said = started_server.in_words(289_000, config)
    assert "second model runner, asynchronous scheduling, CUDA graphs of 3 sizes, KV cache of 289,000 tokens" in said
