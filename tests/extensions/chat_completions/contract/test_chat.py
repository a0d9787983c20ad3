"""OpenAI's SDK against the gateway by its API of chat completions, over sockets."""

import asyncio
import json
from typing import Any

import aiohttp
import openai
import pytest

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.extensions.chat_completions import api
from recipe.async_dapo.extensions.gateway.messages import tool_call

from ...gateway.support.played import NESTED, THOUGHT_AND_CALL, by_chat, openai_client, play, rows
from ...gateway.support.world import ADD, QUESTION, texts
from ...http.support.by_an_sdk import (
    WHERE,
    check_a_late_refusal_is_told,
    check_errors_are_told,
    check_nothing_is_asked_again,
)


@pytest.mark.skipif("reply_formats" not in declared(), reason="this copy reads no calls")
def test_given_a_streaming_client_then_its_helper_puts_text_calls_usage_and_reasoning_together() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            asked: dict[str, Any] = {"model": "policy", "messages": sample["raw_prompt"], "tools": [ADD]}
            usage: dict[str, Any] = {"stream_options": {"include_usage": True}}
            async with client.chat.completions.stream(**asked, **usage) as stream:
                whole = await stream.get_final_completion()
        assert whole.choices[0].message.content == "I add. " and whole.choices[0].finish_reason == "tool_calls"
        assert json.loads(whole.choices[0].message.tool_calls[0].function.arguments) == {"a": 1, "b": 2}
        assert whole.usage is not None and whole.usage.completion_tokens == len(THOUGHT_AND_CALL) - 6
        return 1.0

    assert len(rows(agent, THOUGHT_AND_CALL)) == 1


def blocking(address: str, key: str, **limits: Any) -> str:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=key, **limits) as client:
        said = client.chat.completions.create(model="policy", messages=QUESTION)  # type: ignore[call-overload]
        return said.choices[0].message.content


async def on_a_thread(address: str, key: str, **limits: Any) -> str:
    return await asyncio.to_thread(blocking, address, key, **limits)


async def at_once(address: str, key: str, **limits: Any) -> str:
    async with openai_client(address, key, **limits) as client:
        return (await by_chat(client, QUESTION)).content


async def streamed(address: str, key: str, question: str = "What is a loon?", **limits: Any) -> str:
    async with openai_client(address, key, **limits) as client:
        asked: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": question}]}
        said = await client.chat.completions.create(**asked, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in said])


def test_given_a_refusal_when_a_stream_has_begun_then_its_client_is_told_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stream(address: str, key: str, question: str) -> str:
        return await streamed(address, key, question, max_retries=0)

    check_a_late_refusal_is_told(monkeypatch, stream, openai.APIError)


def test_given_a_refusal_of_a_client_without_an_sdk_that_has_waited_then_it_is_in_the_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def bare(address: str, key: str, question: str) -> str:
        body = {"model": "policy", "messages": [{"role": "user", "content": question}]}
        url, headers = f"{address}/v1/chat/completions", {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(headers=headers) as client, client.post(url, json=body) as response:
            told = await response.json()
        if "error" in told:
            raise LookupError(told["error"]["message"])
        return str(told["choices"][0]["message"]["content"])

    check_a_late_refusal_is_told(monkeypatch, bare, LookupError)


@pytest.mark.slow
def test_given_clients_with_a_shorter_limit_than_an_answer_takes_then_each_has_its_answer_without_asking_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_nothing_is_asked_again(monkeypatch, {one.__name__: one for one in (on_a_thread, at_once, streamed)})


REFUSED: dict[str, dict[str, Any]] = {
    "presence_penalty": {"presence_penalty": 0.5},
    "logit_bias": {"logit_bias": {"5": 1}},
    "response_format": {"response_format": {"type": "json_object"}},
    "guided_choice": {"extra_body": {"guided_choice": ["yes", "no"]}},
    "n must be 1": {"n": 2},
    "tool_choice": {"tools": [ADD], "tool_choice": "required"},
    "image_url": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
    "cannot be begun": {"messages": [*QUESTION, {"role": "assistant", "content": "It is"}]},
    "positive number": {"max_tokens": 0},
    "number of tokens, not True": {"extra_body": {"max_tokens": True}},
    "max_completion_tokens must be": {"max_completion_tokens": 0},
    "stop strings must be a list": {"extra_body": {"stop": {"END": 1}}},
    "request is not understood": {"messages": [{"content": "no role"}]},
    "100 objects and lists": {
        "messages": [{"role": "assistant", "tool_calls": [tool_call("c", "add", NESTED)]}, *QUESTION]
    },
    "100 objects and lists in each": {"metadata": json.loads(NESTED)},
}


@pytest.mark.slow
@pytest.mark.parametrize("what", REFUSED)
def test_given_a_request_that_cannot_be_served_then_its_agent_is_told_why_and_may_go_on(what: str) -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            asked: dict[str, Any] = {"model": "policy", "messages": sample["raw_prompt"]} | REFUSED[what]
            with pytest.raises(openai.BadRequestError, match=what):
                await client.chat.completions.create(**asked)
            await by_chat(client, sample["raw_prompt"], temperature=0.1, seed=3)
        return 0.0

    rows(agent, "yes")


def test_given_a_limit_a_stop_string_or_log_probs_then_they_act() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            chat = client.chat.completions
            asked: dict[str, Any] = {"model": "policy", "messages": sample["raw_prompt"]}
            cut = (await chat.create(**asked, max_tokens=3)).choices[0]
            assert (cut.message.content, cut.finish_reason) == ("a b", "length")
            stopped = (await chat.create(**asked, stop="STOP", logprobs=True)).choices[0]
            assert (stopped.message.content, stopped.finish_reason) == ("a b ", "stop")
            told = [(one.token, one.logprob) for one in stopped.logprobs.content]
            assert told[0][0] == "a" and all(log_prob < 0 for _, log_prob in told)
        return 0.0

    outcome, *_ = play(agent, says=texts("a b STOP"))
    assert not outcome.reason, outcome.cause


@pytest.mark.parametrize("where", WHERE)
def test_given_an_error_of_the_gateway_itself_then_its_agent_is_told_may_ask_again_and_it_counts(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors, writes = (openai.APIStatusError, openai.APIConnectionError), (api, "_usage")
    check_errors_are_told(
        *(monkeypatch, caplog, where), ask=at_once, writes=writes, errors=errors, kind=lambda error: error.type
    )
