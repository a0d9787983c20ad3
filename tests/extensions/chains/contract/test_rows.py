"""What becomes of the rows where requests go on from each other: OpenAI's SDK against the gateway, over sockets."""

import asyncio
import json
from typing import Any

import openai
import pytest

from recipe.async_dapo.config.extensions import declared

from ...gateway.support.played import ADDED, THOUGHT_AND_CALL, by_chat, openai_client, play, rows
from ...gateway.support.world import ADD, check_rows, letters, shown, texts

pytestmark = pytest.mark.skipif("chat_completions" not in declared(), reason="this copy serves no chat completions")


def test_given_an_agent_of_two_turns_then_both_are_trained_in_one_row_as_they_were_sampled() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> dict[str, Any]:
        async with openai_client(address, key) as client:
            messages = list(sample["raw_prompt"])
            messages += [await by_chat(client, messages), {"role": "user", "content": "Check."}]
            assert (await by_chat(client, messages)).content == "two"
        return {"reward": 1.0, "steps": 2}

    _, group, _ = play(agent, says=texts("one ", "two"))
    assert shown(group) == ["[one <|im_end|>]\n<|im_start|>u\nCheck.<|im_end|>\n<|im_start|>a\n[two<|im_end|>]"]
    [output] = group.trajectories[0].outputs
    assert output.rest.reward_score == 1.0
    assert output.rest.extra_fields["reward_extra_info"] == {"acc": 1.0, "steps": 2}


def echoed(message: Any) -> list[Any]:
    """A message as different clients send it back."""
    dumped = message.model_dump(exclude_none=True)
    call = message.tool_calls[0]
    turned = dict(reversed(json.loads(call.function.arguments).items()))
    made = {"id": call.id, "type": "function", "function": {"name": "add", "arguments": json.dumps(turned, indent=1)}}
    floats = json.dumps({name: float(value) for name, value in turned.items()})
    without = {key: value for key, value in dumped.items() if key != "reasoning_content"}
    return [
        message,
        dumped,
        without,
        without | {"tool_calls": [made]},
        without | {"tool_calls": [made | {"function": {"name": "add", "arguments": floats}}]},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        without | {"content": [{"type": "text", "text": message.content + "\n"}]},
    ]


@pytest.mark.skipif("reply_formats" not in declared(), reason="this copy reads no calls")
@pytest.mark.slow
@pytest.mark.parametrize("form", range(7))
def test_given_an_answer_that_its_client_writes_anew_when_it_comes_back_then_its_chain_goes_on_as_sampled(form) -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            messages = list(sample["raw_prompt"])
            said = await by_chat(client, messages, tools=[ADD])
            assert (said.content, said.reasoning_content) == ("I add. ", "hm")
            result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "3"}
            messages += [echoed(said)[form], result]
            assert (await by_chat(client, messages, tools=[ADD])).content == "3"
        return 1.0

    assert rows(agent, THOUGHT_AND_CALL, "3") == [ADDED]


def test_given_sub_agents_and_samples_side_by_side_then_each_chain_is_a_row_and_a_shared_turn_trains_once() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            messages = list(sample["raw_prompt"])
            first = await by_chat(client, messages)

            async def sub(number: int) -> None:
                own: list[Any] = [{"role": "system", "content": "Help."}, {"role": "user", "content": f"Part {number}"}]
                own += [await by_chat(client, own), {"role": "user", "content": "Go on."}]
                await by_chat(client, own)

            await asyncio.gather(*[sub(number) for number in range(3)])
            said = [await by_chat(client, [*messages, first, {"role": "user", "content": way}]) for way in "ab"]
            assert len(said) == 2
        return 1.0

    outcome, group, life = play(agent)
    assert not outcome.reason, outcome.cause
    check_rows(group)
    outputs = group.trajectories[0].outputs
    assert len(outputs) == 5, "three sub-agents, and two ways on from the first answer"
    trained = sum(sum(output.response_mask) for output in outputs)
    assert trained == sum(len(tokens) for tokens in life.server.generated.values()), "each turn once"
    assert all(output.rest.reward_score == 1.0 for output in outputs)


def test_given_a_context_that_is_full_then_the_agent_is_told_so_and_may_compact_into_a_new_chain() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            messages: list[Any] = [*sample["raw_prompt"]]
            messages += [await by_chat(client, messages), {"role": "user", "content": "y" * 4990}]
            with pytest.raises(openai.BadRequestError) as refused:
                await by_chat(client, messages)
            assert refused.value.code == "context_length_exceeded"
            await by_chat(client, [{"role": "user", "content": "In short: " + "x" * 1500}])
        return 0.0

    outcome, group, life = play(agent, says=letters)
    assert not outcome.reason, outcome.cause
    check_rows(group)
    assert len(group.trajectories[0].outputs) == 2
    assert life.boxes[0].session.conversation.new_chains == {"other_history": 1}


def test_given_an_answer_that_was_cut_then_its_turn_is_closed_as_the_template_closes_it() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            messages = [*sample["raw_prompt"]]
            for limit in (3, 2, None):
                messages += [await by_chat(client, messages, max_tokens=limit), {"role": "user", "content": "Go on."}]
        return 1.0

    goes_on = "\n<|im_start|>u\nGo on.<|im_end|>\n<|im_start|>a\n"
    [row] = rows(agent, "a b STOP", "two", "three")
    assert row == f"[a b]<|im_end|>{goes_on}[tw]<|im_end|>{goes_on}[three<|im_end|>]"
