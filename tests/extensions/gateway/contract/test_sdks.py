"""OpenAI's SDK against the gateway by chat completions, over sockets: what clients do, and what becomes of the rows."""

import asyncio
import io
import json
import logging
import threading
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
import ray
from verl.experimental.agent_loop.tool_parser import HermesToolParser

from recipe.async_dapo.core.outcome import Cause, TrajectoryFailed
from recipe.async_dapo.extensions.gateway import server
from recipe.async_dapo.extensions.gateway.messages import tool_call
from recipe.async_dapo.extensions.gateway.session import Session

from ..support.by_an_sdk import LIMIT_S, TOKEN_S, check_nothing_is_asked_again
from ..support.played import ADDED, THOUGHT_AND_CALL, openai_client, play, rows
from ..support.world import ADD, QUESTION, HttpAgent, check_rows, letters, shown, texts


async def by_chat(client: Any, messages: list[Any], **more: Any) -> Any:
    return (await client.chat.completions.create(model="policy", messages=messages, **more)).choices[0].message


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


def test_given_the_address_of_the_node_itself_then_agents_are_told_that() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        assert urlsplit(address).hostname == ray.util.get_node_ip_address()
        async with openai_client(address, key) as client:
            await by_chat(client, sample["raw_prompt"])
        return 1.0

    assert rows(agent, "yes", host="node") == ["[yes<|im_end|>]"]


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


def called(arguments: str) -> str:
    return f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>'


NESTED = '{"a": ' + "[" * 500 + "]" * 500 + "}"


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
    assert len(rows(agent, f"{called(broken)} rest", both, token_s=0.0005)) == 1


def test_given_a_parser_that_raises_then_the_answer_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> Any:
        raise IndexError("of the parser")

    monkeypatch.setattr(HermesToolParser, "extract_tool_calls", fails)

    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            assert (await by_chat(client, sample["raw_prompt"], tools=[ADD])).content == called("{}")
        return 1.0

    rows(agent, called("{}"))


def blocking(address: str, key: str, **limits: Any) -> str:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=key, **limits) as client:
        said = client.chat.completions.create(model="policy", messages=QUESTION)  # type: ignore[call-overload]
        return said.choices[0].message.content


async def on_a_thread(address: str, key: str, **limits: Any) -> str:
    return await asyncio.to_thread(blocking, address, key, **limits)


async def at_once(address: str, key: str, **limits: Any) -> str:
    async with openai_client(address, key, **limits) as client:
        return (await by_chat(client, QUESTION)).content


async def streamed(address: str, key: str, **limits: Any) -> str:
    async with openai_client(address, key, **limits) as client:
        asked: dict[str, Any] = {"model": "policy", "messages": QUESTION}
        said = await client.chat.completions.create(**asked, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in said])


@pytest.mark.slow
def test_given_clients_with_a_shorter_limit_than_an_answer_takes_then_each_has_its_answer_without_asking_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_nothing_is_asked_again(monkeypatch, {one.__name__: one for one in (on_a_thread, at_once, streamed)})


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
    "tool is not understood": {"tools": [{"type": "function", "function": {"description": "has no name"}}]},
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

    outcome, group, _ = play(agent, says=texts("yes"))
    assert not outcome.reason, outcome.cause
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
