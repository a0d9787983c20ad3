"""OpenAI's SDK against the gateway, over sockets: what clients do, and what becomes of their sessions."""

import asyncio
import io
import logging
import threading
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
import ray

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.core.outcome import Cause, TrajectoryFailed
from recipe.async_dapo.extensions.gateway import server
from recipe.async_dapo.extensions.gateway.session import Session

from ..support.by_an_sdk import LIMIT_S, TOKEN_S
from ..support.played import by_chat, openai_client, play, rows
from ..support.world import QUESTION, HttpAgent, shown, texts

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


async def nothing(address: str, key: str, sample: dict[str, Any]) -> float:
    return 1.0


async def crashes(address: str, key: str, sample: dict[str, Any]) -> None:
    async with openai_client(address, key) as client:
        await by_chat(client, QUESTION)
    raise KeyError("oops")


async def hangs(address: str, key: str, sample: dict[str, Any]) -> None:
    async with openai_client(address, key) as client:
        await by_chat(client, QUESTION)
    await its_time_is_over()


async def its_time_is_over() -> None:
    HANGS.set()
    await asyncio.Event().wait()


async def posts_and_crashes(address: str, key: str, sample: dict[str, Any]) -> None:
    async with openai_client(address, key) as client:
        await by_chat(client, QUESTION)
        await client.post(f"{address}/reward", body={"reward": 0.25}, cast_to=object)
    raise TrajectoryFailed("agent_failed", Cause("its own"))


async def posts_and_hangs(address: str, key: str, sample: dict[str, Any]) -> None:
    with suppress(TrajectoryFailed):
        await posts_and_crashes(address, key, sample)
    await its_time_is_over()


async def says_more(address: str, key: str, sample: dict[str, Any]) -> dict[str, float]:
    await says_nothing(address, key, sample)
    return {"reward": 1.0, "steps": 2}


async def says_nothing(address: str, key: str, sample: dict[str, Any]) -> str:
    async with openai_client(address, key) as client:
        await by_chat(client, QUESTION)
    return "done"


async def asks_for_what_it_does_not_get(address: str, key: str, sample: dict[str, Any]) -> None:
    async with openai_client(address, key) as client:
        while True:
            try:
                await by_chat(client, QUESTION, n=2)
            except openai.BadRequestError:
                continue


async def gives_up(address: str, key: str, sample: dict[str, Any]) -> float:
    """It ends while its second request is open."""
    async with openai_client(address, key, max_retries=0) as client:
        messages = [*QUESTION, await by_chat(client, QUESTION), {"role": "user", "content": "And then?"}]
        with pytest.raises(openai.APITimeoutError):
            await by_chat(client.with_options(timeout=LIMIT_S), messages)
    return 1.0


HANGS = threading.Event()  # an agent of this test does; no machine is so slow that one is late before


Case = tuple[HttpAgent, dict[str, Any], str, float | None]


FAILURES: dict[str, Case] = {
    "asks nothing": (nothing, {}, "agent_without_turn", None),
    "asks nothing, and failures score 0": (nothing, {"on_failure": "score_zero"}, "agent_without_turn", None),
    "crashes": (crashes, {}, "generation_error", None),
    "is silent": (hangs, {"silence_s": 0.1}, "agent_silent", None),
    "is late": (hangs, {"time_limit_s": 0.1}, "agent_timeout", None),
    "is late, and what there is counts": (hangs, {"time_limit_s": 0.1, "on_time_limit": "score"}, "", 0.0),
    "is late, and failures score 0": (hangs, {"time_limit_s": 0.1, "on_failure": "score_zero"}, "", 0.0),
    "is late, and the function scores what there is": (
        hangs,
        {"time_limit_s": 0.1, "on_time_limit": "score", "reward": "function"},
        "",
        0.5,
    ),
    "is late, and what it has posted counts": (
        posts_and_hangs,
        {"time_limit_s": 0.1, "on_time_limit": "score", "on_failure": "score_zero"},
        "",
        0.25,
    ),
    "crashes behind its reward, and failures score 0": (posts_and_crashes, {"on_failure": "score_zero"}, "", 0.0),
    "crashes before the function scores, and failures score 0": (
        posts_and_crashes,
        {"on_failure": "score_zero", "reward": "function"},
        "",
        0.0,
    ),
    "lacks what groups are filtered by": (says_more, {"filtered_by": "right"}, "agent_without_result", None),
    "lacks that, and failures score 0": (says_more, {"filtered_by": "right", "on_failure": "score_zero"}, "", 0.0),
    "has what groups are filtered by": (says_more, {"filtered_by": "steps"}, "", 1.0),
    "has no result": (says_nothing, {}, "agent_without_result", None),
    "leaves the reward to the function": (says_nothing, {"reward": "function"}, "", 0.5),
    "is refused again and again": (asks_for_what_it_does_not_get, {}, "agent_refused", None),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", FAILURES)
def test_given_an_agent_that_fails_then_its_reason_is_counted_and_it_never_counts_as_a_zero_unasked(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    HANGS.clear()
    for name in ("own_s", "silent_s"):
        monkeypatch.setattr(Session, name, property(lambda _: 60.0 if HANGS.is_set() else 0.0))
    agent, options, reason, score = FAILURES[what]
    outcome, group, life = play(agent, says=texts("yes"), **options)
    assert outcome.reason == reason, outcome.cause
    assert life.counted["gateway/sessions"] == 1 and life.counted["gateway/failed_sessions"] == bool(reason)
    if "filtered_by" in options and reason:
        assert "has only ['acc', 'steps'], and groups are filtered by right: return this" in outcome.cause.summary
    if score is not None:
        assert group.trajectories[0].outputs[-1].rest.reward_score == score


@pytest.mark.slow
def test_given_an_agent_that_ends_before_its_reply_then_that_turn_is_in_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PING_S", 60.0)
    outcome, group, life = play(gives_up, says=texts("a", "b" * 40), token_s=TOKEN_S)
    assert not outcome.reason, outcome.cause
    assert shown(group) == ["[a<|im_end|>]"]
    sampled = sum(len(tokens) for tokens in life.server.generated.values())
    assert sampled > 2, "the engine had begun"
