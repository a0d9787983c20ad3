"""Whether a model's chat template and verl's builder of continuous tokens agree, in which form the template wants the
arguments of calls, and what it has behind an answer: tried with two turns and a tool's result.
"""

from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

from .messages import Message, for_template, tool_call

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a word up.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        },
    }
]
QUESTION: Message = {"role": "user", "content": "What is a loon?"}
CALL: Message = {
    "role": "assistant",
    "content": "I look it up.",
    "tool_calls": [tool_call("call_1", "look_up", '{"word": "loon"}')],
}
RESULT: Message = {"role": "tool", "tool_call_id": "call_1", "name": "look_up", "content": "A bird."}
MORE: Message = {"role": "user", "content": "And a lark?"}
ANSWER: Message = {"role": "assistant", "content": "A bird."}
_CUT = "an answer that was cut"  # by a limit on its tokens, or a stop string


class Builder(Protocol):
    """verl's `ContinuousTokenBuilder`, as far as it is used."""

    def build_initial_tokens(self, messages: list[Message], *, tools: list[dict[str, Any]] | None) -> list[int]: ...

    def merge_context_tokens(
        self,
        previous_messages: list[Message],
        updated_messages: list[Message],
        runtime_token_ids: list[int],
        *,
        tools: list[dict[str, Any]] | None,
    ) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What is known of a chat template beside what verl's builder knows.

    Attributes:
        has_text_arguments: it wants the arguments of calls as JSON text, not as objects.
        closing_ids: what it has between an answer's text and the next message.
        end_ids: tokens that end an answer. One whose last token is none of these was cut, by a limit or a stop string.
    """

    has_text_arguments: bool
    closing_ids: tuple[int, ...]
    end_ids: frozenset[int]

    @classmethod
    def of(cls, builder: Builder, tokenizer: Any) -> "Template":
        closing_ids = _closing_ids(builder)
        special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        return cls(
            has_text_arguments=wants_text_arguments(builder),
            closing_ids=closing_ids,
            end_ids=frozenset({tokenizer.eos_token_id, *special, *closing_ids[:1]}),
        )

    def closing_of(self, answer_ids: list[int]) -> list[int]:
        """What an answer lacks at its end before a message can follow: verl's builders append it to none."""
        return [] if answer_ids and answer_ids[-1] in self.end_ids else list(self.closing_ids)


def _closing_ids(builder: Builder) -> tuple[int, ...]:
    """The end that renderings of two answers share, without what the builder appends; empty if that differs."""
    answers: list[list[Message]] = [[QUESTION, ANSWER | {"content": text}] for text in ("Yes", "No!")]
    try:
        one, other = (list(builder.build_initial_tokens([*before, MORE], tools=None))[::-1] for before in answers)
        appended = list(builder.merge_context_tokens(answers[0], [*answers[0], MORE], [], tools=None).token_ids)[::-1]
    except Exception:  # of a template, or of a builder: the check at start-up tells that
        return ()
    shared = [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
    return tuple(shared[len(appended) :][::-1]) if shared[: len(appended)] == appended else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFinding:
    """What a template does with turns of an agent.

    Attributes:
        has_text_arguments: it wants the arguments of calls as JSON text.
        refuses: what it says to a history with calls of tools; empty if it renders that.
        differences: in what a continued chain differs from a full rendering, by what is appended.
    """

    has_text_arguments: bool
    refuses: str
    differences: dict[str, str]


def wants_text_arguments(builder: Builder) -> bool:
    """Whether the template renders calls only if their arguments are text."""
    return _renders(builder, has_text_arguments=False) != "" and _renders(builder, has_text_arguments=True) == ""


def _renders(builder: Builder, *, has_text_arguments: bool) -> str:
    """What it says to a history with a call; empty if it renders that."""
    messages = [for_template(one, has_text_arguments=has_text_arguments) for one in (QUESTION, CALL, RESULT)]
    try:
        builder.build_initial_tokens(messages, tools=TOOLS)
    except Exception as error:  # templates raise what they like
        return f"{type(error).__name__}: {error}"
    return ""


def tried(builder: Builder, tokenizer: Any) -> TemplateFinding:
    """What a chain that goes on looks like beside a full rendering of the same messages."""
    template = Template.of(builder, tokenizer)
    is_text = template.has_text_arguments
    call = for_template(CALL, has_text_arguments=is_text)
    refuses = _renders(builder, has_text_arguments=is_text)
    differences = {}
    with_tool: list[tuple[str, list[Message], Message, Any]] = [("a tool's result", [QUESTION, call], RESULT, TOOLS)]
    said: list[Message] = [QUESTION, ANSWER]
    cases = [*([] if refuses else with_tool), ("a user's message", said, MORE, None), (_CUT, said, MORE, None)]
    for name, before, new, tools in cases:
        try:
            ids = _ids_up_to(builder, tokenizer, before, tools)
            if name == _CUT:
                ids = ids[:-1] if ids[-1] in template.end_ids else ids
                ids += template.closing_of(ids)
            merged = builder.merge_context_tokens(before, [*before, new], ids, tools=tools).token_ids
            whole = builder.build_initial_tokens([*before, new], tools=tools)
        except Exception as error:  # of a template, or of a builder
            differences[name] = f"it cannot be appended ({type(error).__name__}: {error})"
            continue
        if list(merged) != list(whole):
            differences[name] = _difference(tokenizer, list(merged), list(whole))
    return TemplateFinding(has_text_arguments=is_text, refuses=refuses, differences=differences)


def _ids_up_to(builder: Any, tokenizer: Any, messages: list[Message], tools: Any) -> list[int]:
    """As a chain would have them: the prompt, and an answer that ends with the token that ends answers."""
    prompt = list(builder.build_initial_tokens(messages[:-1], tools=tools))
    whole = list(builder._render_tokens(messages, add_generation_prompt=False, tools=tools))
    if whole[: len(prompt)] != prompt:
        raise ValueError("the template renders an answer's beginning in another way than it asks for one")
    end = tokenizer.eos_token_id
    last = len(whole) - whole[::-1].index(end) if end in whole[len(prompt) :] else len(whole)
    return whole[:last]


def _difference(tokenizer: Any, merged: list[int], whole: list[int]) -> str:
    place = next((i for i, pair in enumerate(zip(merged, whole, strict=False)) if pair[0] != pair[1]), 0)
    place = place or min(len(merged), len(whole))
    kept, rendered = (tokenizer.decode(ids[max(0, place - 8) : place + 8]) for ids in (merged, whole))
    return f"the chain has {kept!r} where a full rendering has {rendered!r}"
