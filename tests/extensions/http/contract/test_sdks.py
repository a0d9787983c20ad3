"""OpenAI's SDK against the gateway, over sockets: what clients do, and what becomes of their sessions."""

import asyncio
import io
import logging
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
import ray

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.extensions.http import server

from ...gateway.support.played import by_chat, openai_client, play, rows
from ...gateway.support.world import QUESTION, shown, texts
from ..support.by_an_sdk import LIMIT_S, TOKEN_S

pytestmark = pytest.mark.skipif("chat_completions" not in declared(), reason="this copy serves no chat completions")


def test_given_the_address_of_the_node_itself_then_agents_are_told_that() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        assert urlsplit(address).hostname == ray.util.get_node_ip_address()
        async with openai_client(address, key) as client:
            await by_chat(client, sample["raw_prompt"])
        return 1.0

    assert rows(agent, "yes", host="node") == ["[yes<|im_end|>]"]


@pytest.mark.parametrize("pings", [False, True])
def test_given_a_client_that_gives_up_and_asks_again_then_it_joins_its_request_and_the_answer_is_sampled_once(
    pings: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the SDK's retries its limit is one on the whole call, which no ping stops, and nothing says that it asks
    again."""
    monkeypatch.setattr(server, "PING_S", 0.1 if pings else 60.0)

    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key, timeout=0.3, max_retries=99 if not pings else 0) as client:
            while True:
                try:
                    asked = by_chat(client, sample["raw_prompt"])
                    said = await (asyncio.wait_for(asked, 0.3) if pings else asked)
                except TimeoutError:
                    continue
                assert said.content == "a" * 20
                return 1.0

    outcome, group, life = play(agent, says=texts("a" * 20), token_s=0.05)
    assert not outcome.reason, outcome.cause
    assert life.server.requests == 1 and life.boxes[0].session.counts["resent"] >= 1
    assert len(group.trajectories[0].outputs) == 1


def test_given_other_sampling_than_the_run_s_then_it_has_no_effect_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            for turn in range(2):
                await by_chat(client, sample["raw_prompt"], temperature=0.3, top_p=0.5, max_tokens=7 + turn)
        return 1.0

    outcome, _, life = play(agent, says=texts("yes"))
    assert not outcome.reason, outcome.cause
    assert [(asked["temperature"], asked.get("top_p"), asked["max_tokens"]) for asked in life.server.asked] == [
        (1.0, None, 7),
        (1.0, None, 8),
    ]
    assert caplog.text.count("agents set temperature, top_p, which have no effect") == 1


def test_given_stop_strings_that_are_refused_then_the_agent_is_told_and_training_goes_on() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            with pytest.raises(openai.BadRequestError, match="does not go with this"):
                await by_chat(client, sample["raw_prompt"], stop=["x"])
            await by_chat(client, sample["raw_prompt"])
        return 0.0

    outcome, *_ = play(agent, says=texts("yes"), refused={"stop": "does not go with this"})
    assert not outcome.reason, outcome.cause


def test_given_other_keys_paths_and_bodies_then_nothing_of_a_session_is_told() -> None:
    import aiohttp

    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        chat = f"{address}/v1/chat/completions"
        body: dict[str, Any] = {"model": "policy", "messages": sample["raw_prompt"]}
        async with aiohttp.ClientSession() as client:

            async def status(path: str, given: str, **what: Any) -> int:
                headers = {"Authorization": f"Bearer {given}"}
                async with client.post(path, headers=headers, **what) as response:
                    assert key not in await response.text()
                    return response.status

            for wrong in ("", "sk-", key[:-1], key + "x", key.upper()):
                assert await status(chat, wrong, json=body) == 401
            for path in ("/", "/v1/chat", "/admin", "/v1/responses/1", "/sessions"):
                assert await status(address + path, key, json=body) == 404
            assert await status(chat, key, data=b"{") == 400
            assert await status(chat, key, json=[body]) == 400
            assert await status(chat, key, data=b'{"messages": [], "top_p": NaN}') == 400
            assert await status(chat, key, data=io.BytesIO(b" " * (server.MOST_BYTES + 1))) == 413
            async with client.get(f"{address}/v1/models", headers={"x-api-key": key}) as response:
                assert [model["id"] for model in (await response.json())["data"]] == ["policy"]
            assert await status(f"{address}/reward", key, json={"done": True}) == 400
            assert await status(f"{address}/reward", key, json=0.25) == 200
            assert await status(chat, key, json=body) == 200
        return 1.0

    outcome, group, life = play(agent, says=texts("yes"))
    assert not outcome.reason, outcome.cause
    assert life.counted["gateway/refused"] == 4, "what cannot be read is refused, as often as it comes"
    assert group.trajectories[0].outputs[-1].rest.reward_score == 0.25, "what is posted counts before what is returned"


async def gives_up(address: str, key: str, sample: dict[str, Any]) -> float:
    """It ends while its second request is open."""
    async with openai_client(address, key, max_retries=0) as client:
        messages = [*QUESTION, await by_chat(client, QUESTION), {"role": "user", "content": "And then?"}]
        with pytest.raises(openai.APITimeoutError):
            await by_chat(client.with_options(timeout=LIMIT_S), messages)
    return 1.0


@pytest.mark.slow
def test_given_an_agent_that_ends_before_its_reply_then_that_turn_is_in_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PING_S", 60.0)
    outcome, group, life = play(gives_up, says=texts("a", "b" * 40), token_s=TOKEN_S)
    assert not outcome.reason, outcome.cause
    assert shown(group) == ["[a<|im_end|>]"]
    sampled = sum(len(tokens) for tokens in life.server.generated.values())
    assert sampled > 2, "the engine had begun"
