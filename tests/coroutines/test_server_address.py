"""vLLM's HTTP endpoint, which has no password, is for those who need it."""

import asyncio
from types import SimpleNamespace

import pytest
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

from recipe.async_dapo.engines import server as server_module

from ..support.scripted_engine import ScriptedEngine, start_server


@pytest.mark.parametrize(
    ("mode", "scraped", "node", "listens_on"),
    [
        (RolloutMode.HYBRID, False, "10.0.0.7", "127.0.0.1"),
        (RolloutMode.HYBRID, False, "fd00::7", "::1"),
        (RolloutMode.HYBRID, True, "10.0.0.7", "10.0.0.7"),
        (RolloutMode.STANDALONE, False, "10.0.0.7", "10.0.0.7"),  # a reward model: asked over HTTP
    ],
)
def test_given_an_engine_when_it_starts_then_its_endpoint_is_on_loopback_unless_others_ask_it(
    monkeypatch, mode, scraped, node, listens_on
) -> None:
    bound = []

    async def run_server(self: vLLMHttpServer, args: object) -> None:
        bound.append(self._server_address)
        self._server_port = 8000

    async def main() -> None:
        engine = ScriptedEngine(1)
        server = start_server(monkeypatch, engine)
        server.rollout_mode, server._server_address = mode, node
        server.config.prometheus = SimpleNamespace(enable=scraped)
        await server.run_server(None)
        assert server.get_server_address() == (node, 8000), "the server has another name"

    monkeypatch.setattr(vLLMHttpServer, "run_server", run_server)
    monkeypatch.setattr(server_module.LoadMeter, "attach", lambda engine: None)
    asyncio.run(main())
    assert bound == [listens_on]
