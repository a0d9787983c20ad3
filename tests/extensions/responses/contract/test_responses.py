"""OpenAI's SDK against the gateway by its API of responses, over sockets."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseErrorEvent

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.extensions.gateway.messages import CONTEXT_FULL, Refused
from recipe.async_dapo.extensions.http.apis import openai_error
from recipe.async_dapo.extensions.responses import api

from ...gateway.support.played import ADDED, THOUGHT_AND_CALL, openai_client, play, rows
from ...gateway.support.world import ADD, QUESTION, texts
from ...http.support.by_an_sdk import WHERE, check_a_late_refusal_is_told, check_errors_are_told

TOOL = {"type": "function", "strict": True} | ADD["function"]
Items = list[Any]


async def by_responses(client: openai.AsyncOpenAI, given: Any, *, streams: bool = False, **more: Any) -> Any:
    asked: dict[str, Any] = {"model": "policy", "input": given, "store": False, **more}
    if not streams:
        return await client.responses.create(**asked)
    async with client.responses.stream(**asked) as stream:
        return await stream.get_final_response()


def echoed(output: Items) -> list[Items]:
    """A reply's items as different clients send them back."""
    dumped = [item.model_dump(exclude_none=True) for item in output]
    call = dumped[-1]
    plain = {"type": "function_call", "call_id": call["call_id"], "name": "add", "arguments": '{"b": 2, "a": 1.0}'}
    hidden = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None}  # as Codex sends it
    return [output, dumped, dumped[1:], [plain], [hidden, {"role": "assistant", "content": "I add."}, plain]]


@pytest.mark.slow
@pytest.mark.skipif(not {"chains", "reply_formats"} <= declared().keys(), reason="this copy reads no calls, or chains")
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("form", range(5))
def test_given_reasoning_a_call_and_its_result_then_its_turns_are_one_chain_as_sampled(
    form: int, streams: bool
) -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            asked: dict[str, Any] = {"tools": [TOOL], "streams": streams, "instructions": "Be short."}
            given: Items = list(sample["raw_prompt"])
            reply = await by_responses(client, given, **asked)
            thought, said, call = reply.output
            assert (thought.content[0].text, said.content[0].text, reply.output_text) == ("hm", "I add. ", "I add. ")
            assert (call.name, json.loads(call.arguments)) == ("add", {"a": 1, "b": 2})
            assert (reply.status, reply.usage.output_tokens) == ("completed", len(THOUGHT_AND_CALL) - 6)
            result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
            last = await by_responses(client, [*given, *echoed(reply.output)[form], result], **asked)
            assert last.output_text == "3" and last.id != reply.id
        return 1.0

    assert rows(agent, THOUGHT_AND_CALL, "3") == [ADDED]


def test_given_text_in_place_of_items_a_limit_or_log_probs_then_they_act() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            include = ["message.output_text.logprobs"]
            whole = await by_responses(client, "What is a loon?", include=include)
            told = [(one.token, one.logprob) for one in whole.output[0].content[0].logprobs]
            assert [token for token, _ in told][:3] == ["a", " ", "b"] and all(log_prob < 0 for _, log_prob in told)
            cut = await by_responses(client, "What is a loon?", max_output_tokens=3)
            assert (cut.output_text, cut.status) == ("a b", "incomplete")
            assert cut.incomplete_details.reason == "max_output_tokens"
            kinds = [
                event.type
                async for event in await client.responses.create(
                    model="policy", input="What is a loon?", max_output_tokens=2, stream=True
                )
            ]
            assert kinds[0] == "response.created" and kinds[-1] == "response.incomplete"
        return 1.0

    outcome, *_ = play(agent, says=texts("a b c"))
    assert not outcome.reason, outcome.cause


def test_given_a_refusal_when_a_stream_has_begun_then_its_client_is_told_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stream(address: str, key: str, question: str) -> str:
        async with openai_client(address, key, max_retries=0) as client:
            return str((await by_responses(client, question, streams=True)).output_text)

    check_a_late_refusal_is_told(monkeypatch, stream, openai.APIError)


def test_given_a_stream_that_ends_with_an_error_then_it_is_an_event_as_openai_describes_it() -> None:
    """Clients without its SDK go by an event's `type`."""
    told = api.late_error(openai_error(Refused(400, "too long", CONTEXT_FULL)), 2)
    seen = ResponseErrorEvent.model_validate(told)
    assert (seen.type, seen.code, seen.message, seen.sequence_number) == ("error", CONTEXT_FULL, "too long", 2)


REFUSED: dict[str, dict[str, Any]] = {
    "previous_response_id is not served: no response is stored; send the whole conversation": {
        "previous_response_id": "resp_1"
    },
    "conversation is not served": {"conversation": "conv_1"},
    "background is not served": {"background": True},
    "truncation=auto": {"truncation": "auto"},
    "text.format": {"text": {"format": {"type": "json_object"}}},
    "tools of type 'web_search'": {"tools": [{"type": "web_search"}]},
    "tool_choice": {"tools": [TOOL], "tool_choice": {"type": "function", "name": "add"}},
    "input of type 'item_reference'": {"given": [{"type": "item_reference", "id": "rs_1"}]},
    "'input_image' is not served": {
        "given": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:", "detail": "auto"}]}]
    },
    "request is not understood": {"given": [{"content": "no role"}]},
}


@pytest.mark.slow
@pytest.mark.parametrize("what", REFUSED)
def test_given_a_request_that_cannot_be_served_then_its_agent_is_told_why_and_may_go_on(what: str) -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            asked = {"given": QUESTION} | REFUSED[what]
            with pytest.raises(openai.BadRequestError, match=what):
                await by_responses(client, **asked)
            settings: dict[str, Any] = {"temperature": 0.1, "reasoning": {"effort": "low"}}
            await by_responses(client, QUESTION, **settings)
        return 0.0

    rows(agent, "yes")


@pytest.mark.parametrize("where", WHERE)
def test_given_an_error_of_the_gateway_itself_then_its_agent_is_told_may_ask_again_and_it_counts(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(address: str, key: str, **options: Any) -> str:
        async with openai_client(address, key, **options) as client:
            return (await by_responses(client, QUESTION)).output_text

    errors, writes = (openai.APIStatusError, openai.APIConnectionError), (api, "_items")
    check_errors_are_told(
        *(monkeypatch, caplog, where), ask=ask, writes=writes, errors=errors, kind=lambda error: error.type
    )
