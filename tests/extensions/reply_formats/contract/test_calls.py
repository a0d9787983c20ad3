"""Calls of tools by OpenAI's SDK, over sockets: what cannot be read is text."""

from typing import Any

import openai
import pytest
from verl.experimental.agent_loop.tool_parser import HermesToolParser

from recipe.async_dapo.config.extensions import declared

from ...gateway.support.played import NESTED, by_chat, openai_client, play, rows
from ...gateway.support.world import ADD, texts

pytestmark = pytest.mark.skipif("chat_completions" not in declared(), reason="this copy serves no chat completions")


def called(arguments: str) -> str:
    return f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>'


@pytest.mark.parametrize("broken", ['{"a', "[1, 2]", '"one"', NESTED], ids=["cut", "a list", "text", "nested"])
def test_given_a_call_that_cannot_be_read_then_it_is_the_answers_text_beside_those_that_can(broken: str) -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            messages = [*sample["raw_prompt"]]
            said = await by_chat(client, messages, tools=[ADD])
            assert said.content == f"{called(broken)} rest" and not said.tool_calls
            messages += [said, {"role": "user", "content": "Again."}]
            said = await by_chat(client, messages, tools=[ADD])
            assert said.content == f"So: {called(broken)}"
            assert [call.function.arguments for call in said.tool_calls] == ['{"a": 1}', '{"a": 2}']
        return 1.0

    both = "So: " + called('{"a": 1}') + called(broken) + called('{"a": 2}')
    found = rows(agent, f"{called(broken)} rest", both, token_s=0.0005)
    assert len(found) == (1 if "chains" in declared() else 2)


def test_given_a_parser_that_raises_then_the_answer_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> Any:
        raise IndexError("of the parser")

    monkeypatch.setattr(HermesToolParser, "extract_tool_calls", fails)

    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            assert (await by_chat(client, sample["raw_prompt"], tools=[ADD])).content == called("{}")
        return 1.0

    rows(agent, called("{}"))


@pytest.mark.slow
def test_given_a_tool_that_is_none_then_its_request_is_refused_before_a_token_is_sampled() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            nameless = {"type": "function", "function": {"description": "has no name"}}
            with pytest.raises(openai.BadRequestError, match="tool is not understood"):
                await by_chat(client, sample["raw_prompt"], tools=[nameless])
            await by_chat(client, sample["raw_prompt"])
        return 0.0

    _, _, life = play(agent, says=texts("yes"))
    assert life.server.requests == 1
