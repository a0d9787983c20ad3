"""Anthropic's SDK against the gateway, over sockets."""

from typing import Any

import anthropic
import pytest

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.extensions.anthropic_messages import api

from ...gateway.support.played import ADDED, NO_CERTIFICATES, THOUGHT_AND_CALL, rows
from ...gateway.support.world import ADD, QUESTION
from ...http.support.by_an_sdk import (
    WHERE,
    check_a_late_refusal_is_told,
    check_errors_are_told,
    check_nothing_is_asked_again,
)


def client_of(address: str, key: str, **options: Any) -> anthropic.AsyncAnthropic:
    own = anthropic.DefaultAsyncHttpxClient(verify=NO_CERTIFICATES)
    return anthropic.AsyncAnthropic(base_url=address, api_key=key, http_client=own, **options)


@pytest.mark.skipif(not {"chains", "reply_formats"} <= declared().keys(), reason="this copy reads no calls, or chains")
@pytest.mark.parametrize("streams", [False, True])
def test_given_anthropics_sdk_then_thinking_tools_and_their_results_go_through_one_chain(streams: bool) -> None:
    tools: Any = [{"name": "add", "description": "adds", "input_schema": ADD["function"]["parameters"]}]

    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with client_of(address, key) as client:
            messages: list[Any] = list(sample["raw_prompt"])
            asked: dict[str, Any] = {"model": "policy", "max_tokens": 500, "system": "Be short.", "tools": tools}

            async def ask() -> Any:
                if not streams:
                    return await client.messages.create(messages=messages, **asked)
                async with client.messages.stream(messages=messages, **asked) as stream:
                    return await stream.get_final_message()

            said = await ask()
            assert [block.type for block in said.content] == ["thinking", "text", "tool_use"]
            assert said.stop_reason == "tool_use" and said.content[2].input == {"a": 1, "b": 2}
            result = {"type": "tool_result", "tool_use_id": said.content[2].id, "content": "3"}
            messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": [result]}]
            assert (await ask()).content[0].text == "3"
        return 1.0

    assert rows(agent, THOUGHT_AND_CALL, "3") == [ADDED]


def test_given_anthropics_sdk_and_a_context_that_is_full_then_the_agent_is_told_in_anthropics_words() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with client_of(address, key) as client:
            asked: dict[str, Any] = {"model": "policy", "max_tokens": 9}
            long: Any = [{"role": "user", "content": "y" * 6000}]
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long: "):
                await client.messages.create(messages=long, **asked)
            await client.messages.create(messages=sample["raw_prompt"], **asked)
        return 0.0

    rows(agent, "yes")


async def at_once(address: str, key: str, **options: Any) -> str:
    asked: dict[str, Any] = {"model": "policy", "messages": QUESTION, "max_tokens": 99}
    async with client_of(address, key, **options) as client:
        return (await client.messages.create(**asked)).content[0].text


async def streamed(address: str, key: str, question: str = "What is a loon?", **options: Any) -> str:
    messages = [{"role": "user", "content": question}]
    asked: dict[str, Any] = {"model": "policy", "messages": messages, "max_tokens": 99}
    async with (
        client_of(address, key, **options) as client,
        client.messages.stream(**asked) as stream,
    ):
        return (await stream.get_final_message()).content[0].text  # type: ignore[union-attr]


def test_given_a_refusal_when_a_stream_has_begun_then_its_client_is_told_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stream(address: str, key: str, question: str) -> str:
        return await streamed(address, key, question, max_retries=0)

    check_a_late_refusal_is_told(monkeypatch, stream, anthropic.APIStatusError)


@pytest.mark.slow
def test_given_clients_with_a_shorter_limit_than_an_answer_takes_then_each_has_its_answer_without_asking_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_nothing_is_asked_again(monkeypatch, {"at once": at_once, "streamed": streamed})


@pytest.mark.parametrize("where", WHERE)
def test_given_an_error_of_the_gateway_itself_then_its_agent_is_told_may_ask_again_and_it_counts(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors, writes = (anthropic.APIStatusError, anthropic.APIConnectionError), (api, "_blocks")
    kind = lambda error: error.body["error"]["type"]  # noqa: E731
    check_errors_are_told(monkeypatch, caplog, where, ask=at_once, writes=writes, errors=errors, kind=kind)
