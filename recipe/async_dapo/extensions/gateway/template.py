"""In which form a model's chat template wants the arguments of calls, tried with a tool's result."""

from dataclasses import dataclass
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
        refuses: what it says to a history with calls of tools; empty if it renders that.
    """

    has_text_arguments: bool
    refuses: str

    @classmethod
    def of(cls, builder: Builder) -> "Template":
        refuses = _refuses(builder, has_text_arguments=False)
        is_text = refuses != "" and _refuses(builder, has_text_arguments=True) == ""
        return Template(has_text_arguments=is_text, refuses="" if is_text else refuses)


def _refuses(builder: Builder, *, has_text_arguments: bool) -> str:
    messages = [for_template(one, has_text_arguments=has_text_arguments) for one in (QUESTION, CALL, RESULT)]
    try:
        builder.build_initial_tokens(messages, tools=TOOLS)
    except Exception as error:  # templates raise what they like
        return f"{type(error).__name__}: {error}"
    return ""
