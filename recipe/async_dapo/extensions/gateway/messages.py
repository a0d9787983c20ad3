"""What agents ask and are told, in no API's form: requests, replies, refusals, and when two messages mean the same."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]  # role, content as text, and where there are any: tool_calls, tool_call_id, reasoning_content

MOST_NESTED = 100  # objects and lists in each other
CONTEXT_FULL = "context_length_exceeded"  # the code by which agents know that they may compact their history


class Refused(Exception):
    """A request that is not answered; its agent is told why.

    Args:
        status: of HTTP.
        code: OpenAI's name for the kind of error.
    """

    def __init__(self, status: int, what: str, code: str = "invalid_request_error") -> None:
        super().__init__(what)
        self.status, self.code = status, code


@dataclass(frozen=True, kw_only=True)
class Request:
    """What an agent asks the model.

    Attributes:
        tools: as OpenAI's chat completions have them.
        max_tok: None = as long as the run's own limits allow [tokens].
        ignored: parameters of sampling that the run sets itself.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tok: int | None = None
    stop: tuple[str, ...] = ()
    streams: bool = False
    has_usage: bool = False  # in a stream, too
    has_log_probs: bool = False  # of the tokens sampled
    model: str = ""
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the model wants to be made; `arguments` are JSON, an object."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the model has said.

    Attributes:
        name: unique in its session, and the same when the agent runs again.
        is_cut: it reached a limit on its tokens.
        tokens: (text, log-prob) of each token.
    """

    name: str
    text: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    is_cut: bool = False
    stop_string: str | None = None
    prompt_tok: int = 0
    reply_tok: int = 0
    tokens: tuple[tuple[str, float], ...] = ()
    model: str = ""

    @property
    def message(self) -> Message:
        """As the chat template would take it."""
        message: Message = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [tool_call(call.call_id, call.name, call.arguments) for call in self.calls]
        return message


def tool_call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """As OpenAI's messages have it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def meaning(message: Message, written: Callable[[str], str]) -> str:
    """What a message says, however a client writes it: in what order and with what blanks it has a call's arguments,
    with or without the model's reasoning. Two messages with the same meaning say the same.

    Args:
        written: its texts, which are its content and those in arguments of calls, as they are compared.
    """
    said: dict[str, Any] = {"role": message["role"], "content": written(message["content"]).strip()}
    if calls := message.get("tool_calls"):
        functions = [call["function"] for call in calls]
        said["calls"] = [[one["name"], _plain(_parsed(one["arguments"]), written)] for one in functions]
        if not message["content"].strip():
            said["ids"] = [call.get("id") for call in calls]
    if message["role"] == "tool":
        said["of"] = message.get("tool_call_id")
    return json.dumps(said, sort_keys=True)


def for_template(message: Message, *, has_text_arguments: bool) -> Message:
    """With the arguments of its calls in the form that the chat template wants."""
    if not message.get("tool_calls"):
        return message
    shown = []
    for call in message["tool_calls"]:
        arguments = _parsed(call["function"]["arguments"])
        is_text = has_text_arguments and not isinstance(arguments, str)
        function = call["function"] | {"arguments": json.dumps(arguments, ensure_ascii=False) if is_text else arguments}
        shown.append(call | {"function": function})
    return message | {"tool_calls": shown}


def _parsed(arguments: Any) -> Any:
    """A call's arguments as an object, where they are one.

    Raises:
        Refused: if they are nested too deeply.
    """
    if not isinstance(arguments, str):
        return arguments
    try:
        return json_of(arguments)
    except ValueError:
        return arguments


def json_of(text: str | bytes) -> Any:
    """
    Raises:
        ValueError: for what is no JSON.
        Refused: for what is nested so deeply that to walk through it, or to render it, may take too many frames.
    """
    try:
        value = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise _too_deep() from None
    level, depth = [value], 0
    while level := [inner for one in level for inner in _within(one)]:
        if (depth := depth + 1) > MOST_NESTED:
            raise _too_deep()
    return value


def _no_number(name: str) -> Any:
    """Python reads and writes NaN and Infinity, which JSON does not have, and other clients could not read."""
    raise ValueError(f"{name} is no JSON")


def _within(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _too_deep() -> Refused:
    return Refused(400, f"JSON may have {MOST_NESTED} objects and lists in each other, no more")


def _plain(value: Any, written: Callable[[str], str]) -> Any:
    """With its texts as they are compared, and 1 for 1.0, which some clients write for each other."""
    if isinstance(value, dict):
        return {key: _plain(one, written) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one, written) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return written(value) if isinstance(value, str) else value
