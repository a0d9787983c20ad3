"""Replies as the families write them, by verl's own parsers: what is a call, what is text, and what is reasoning."""

import asyncio
import json
from typing import NamedTuple

import pytest
from verl.experimental.agent_loop.tool_parser import ToolParser

from recipe.async_dapo.extensions.gateway.messages import Reply, Request
from recipe.async_dapo.extensions.reply_formats.reading import FormatReader, known_parsers
from recipe.async_dapo_lab.quickstart.tiny_model import build_tokenizer

from ...gateway.support.world import ADD

D = "\uff5cDSML\uff5c"
SPECIAL = {  # tokens that models have, by the name of verl's parser; what is in none of them is text
    "kimi": "<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|> "
    "<|tool_call_end|>",
    "gemma4": '<|tool_call> <tool_call|> <|"|> <|channel> <channel|>',
    "gpt-oss": "<|start|> <|channel|> <|message|> <|constrain|> <|call|> <|end|> <|return|>",
    "deepseek_v4": D,
    "seed": "</seed:think>",
}
HARMONY = "<|start|>assistant<|channel|>"


class Written(NamedTuple):
    """How a family writes a call with one argument, one that is lost in verl's parser, and what is around them."""

    call: str
    broken: str
    begin: str = ""
    end: str = ""


FAMILIES = {
    "hermes": Written(
        '<tool_call>\n{"name": "add", "arguments": {"a": %d}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "lost\n</tool_call>',
    ),
    "qwen3_coder": Written(
        "<tool_call>\n<function=add>\n<parameter=a>\n%d\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=lost\n</function>\n</tool_call>",
    ),
    "glm": Written(
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>%d</arg_value>\n</tool_call>",
        "<tool_call>\n<arg_key>lost</arg_key>\n</tool_call>",
    ),
    "seed": Written(
        "<seed:tool_call>\n<function=add>\n<parameter=a>%d</parameter>\n</function>\n</seed:tool_call>",
        "<seed:tool_call>\n<function=lost\n</seed:tool_call>",
    ),
    "minimax": Written(
        '<invoke name="add">\n<parameter name="a">%d</parameter>\n</invoke>\n',
        '<invoke name="lost>\n</invoke>\n',
        "<minimax:tool_call>\n",
        "</minimax:tool_call>",
    ),
    "kimi": Written(
        '<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": %d}<|tool_call_end|>',
        '<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"lost<|tool_call_end|>',
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    ),
    "deepseek_v4": Written(
        f'<{D}invoke name="add">\n<{D}parameter name="a" string="false">%d</{D}parameter>\n</{D}invoke>\n',
        f'<{D}invoke name="lost>\n</{D}invoke>\n',
        f"\n\n<{D}tool_calls>\n",
        f"</{D}tool_calls>",
    ),
    "gemma4": Written("<|tool_call>call:add{a:%d}<tool_call|>", "<|tool_call>call:add{a:[1,lost]}<tool_call|>"),
    "gpt-oss": Written(
        f'{HARMONY}commentary to=functions.add <|constrain|>json<|message|>{{"a": %d}}<|call|>',
        f'{HARMONY}commentary to=functions.add <|constrain|>json<|message|>{{"lost<|call|>',
    ),
}


def read(parser: str, said: str, **asked: object) -> Reply:
    named = {f"token_{number}": token for number, token in enumerate(SPECIAL.get(parser, "</think>").split())}
    tokenizer = build_tokenizer(named)
    token_ids = [*tokenizer.encode(said), tokenizer.eos_token_id]
    assert tokenizer.unk_token_id not in token_ids
    request = Request(messages=[], tools=[ADD], **asked)  # type: ignore[arg-type]
    reader = FormatReader(tokenizer, parser=parser, model_type=None, default="hermes")
    return asyncio.run(reader.read("r", request, token_ids, [0.0] * len(token_ids), prompt_tok=1, limit_tok=10**6))


def arguments(reply: Reply) -> list[object]:
    assert all(call.name == "add" for call in reply.calls)
    return [json.loads(call.arguments)["a"] for call in reply.calls]


def test_every_parser_that_verl_has_is_known() -> None:
    of_verl = [name for name in known_parsers() if ToolParser._registry[name].__module__.startswith("verl.")]
    assert sorted(FAMILIES) == of_verl  # tests of other files register theirs, too


@pytest.mark.parametrize("parser", FAMILIES)
def test_given_calls_then_all_are_made_and_are_no_text(parser: str) -> None:
    family = FAMILIES[parser]
    reply = read(parser, f"So: {family.begin}{family.call % 1}{family.call % 2}{family.end}")
    assert arguments(reply) == [1, 2] and reply.text.strip() == "So:"
    assert not read(parser, f"{family.begin}{family.call % 1}{family.end}").text


@pytest.mark.parametrize("parser", FAMILIES)
def test_given_a_call_that_cannot_be_read_then_it_is_text_beside_others_and_alone(parser: str) -> None:
    call, broken, begin, end = FAMILIES[parser]
    reply = read(parser, f"So: {begin}{call % 1}{broken}{call % 2}{end} Done.")
    assert arguments(reply) == [1, 2]
    assert reply.text.startswith("So:") and "lost" in reply.text and reply.text.endswith("Done.")
    alone = read(parser, f"So: {begin}{broken}{end}")
    assert not alone.calls and alone.text.startswith("So:") and "lost" in alone.text


@pytest.mark.parametrize("parser", FAMILIES)
def test_given_a_call_that_is_cut_then_it_is_text_and_no_call_with_half_of_its_arguments(parser: str) -> None:
    call, _, begin, _ = FAMILIES[parser]
    whole = call % 12
    cut = whole[: whole.index("12") + 1]
    for before, made in (("", []), (call % 3, [3])):
        reply = read(parser, f"{begin}{before}{cut}")
        assert arguments(reply) == made and reply.text.endswith("1"), reply.text
    followed = read(parser, f"{begin}{cut}{call % 3}")
    assert arguments(followed) == [3] and "1" in followed.text


@pytest.mark.parametrize("parser", ["hermes", "kimi", "gpt-oss"])
def test_given_arguments_that_are_nested_too_deeply_or_no_json_of_others_then_they_are_text(parser: str) -> None:
    call, _, begin, end = FAMILIES[parser]
    for value in ("[" * 5000 + "]" * 5000, "NaN", "Infinity"):
        reply = read(parser, f"{begin}{call.replace('%d', value)}{call % 2}{end}")
        assert arguments(reply) == [2] and value in reply.text


REASONED = {
    "hermes": "<think>hm</think>\nyes",
    "seed": "<seed:think>hm</seed:think>yes",
    "gemma4": "<|channel>thought\nhm<channel|>yes",
    "gpt-oss": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>",
}


@pytest.mark.parametrize("parser", REASONED)
def test_given_reasoning_then_it_is_no_text_also_where_it_is_cut_and_calls_in_it_are_none(parser: str) -> None:
    whole = REASONED[parser]
    reply = read(parser, whole)
    assert (reply.reasoning, reply.text.strip()) == ("hm", "yes")
    call = FAMILIES[parser].call % 1
    cut = read(parser, whole[: whole.index("hm")] + "hm" + ("" if parser == "gpt-oss" else call))
    assert cut.reasoning.startswith("hm") and not cut.text and not cut.calls
    stopped = read(parser, whole[: whole.index("hm")] + "hm STOP", stop=("STOP",))
    assert (stopped.reasoning.strip(), stopped.text, stopped.stop_string) == ("hm", "", "STOP")
