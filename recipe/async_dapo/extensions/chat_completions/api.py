"""POST /v1/chat/completions: OpenAI's chat completions as requests and replies."""

import time
from collections.abc import Iterator
from typing import Any

from ..gateway.messages import Message, Refused, Reply, Request, tool_call
from ..http.apis import (
    OPENAI_PING,
    Api,
    check_parameters,
    event,
    log_probs_of,
    number_of_tokens,
    openai_error,
    stop_strings,
    text_of,
)


def request_of(body: dict[str, Any]) -> Request:
    """
    Raises:
        Refused: for what would change the distribution that tokens are sampled from.
    """
    ignored = check_parameters(body)
    stop = body.get("stop")
    return Request(
        messages=[_message(message) for message in body["messages"]],
        tools=[_tool(tool) for tool in body.get("tools") or () if body.get("tool_choice") != "none"],
        max_tok=number_of_tokens(body, "max_completion_tokens", "max_tokens"),
        stop=stop_strings([stop] if isinstance(stop, str) else stop),
        streams=bool(body.get("stream")),
        has_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        has_log_probs=bool(body.get("logprobs")),
        model=str(body.get("model", "")),
        ignored=ignored,
    )


def body_of(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"refusal": None} | reply.message
    if reply.calls and not reply.text:
        message["content"] = None
    choice = {"index": 0, "message": message, "logprobs": _log_probs(reply), "finish_reason": _finish_reason(reply)}
    return _head(reply, "chat.completion") | {"choices": [choice], "usage": _usage(reply)}


def events_of(reply: Reply, *, has_usage: bool) -> Iterator[bytes]:
    """The whole reply as a stream of events."""
    head = _head(reply, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], reason: str | None = None, log_probs: Any = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": log_probs, "finish_reason": reason}
        return event(head | {"choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    if reply.reasoning:
        yield chunk({"reasoning_content": reply.reasoning})
    if reply.text:
        yield chunk({"content": reply.text}, log_probs=_log_probs(reply))
    for index, call in enumerate(reply.calls):
        yield chunk({"tool_calls": [{"index": index} | tool_call(call.call_id, call.name, call.arguments)]})
    yield chunk({}, _finish_reason(reply))
    if has_usage:
        yield event(head | {"choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def _message(message: dict[str, Any]) -> Message:
    role = {"developer": "system", "function": "tool"}.get(message["role"], message["role"])
    plain: Message = {"role": role, "content": text_of(message.get("content"))}
    for name in ("tool_call_id", "name"):
        if message.get(name):
            plain[name] = message[name]
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        plain["reasoning_content"] = reasoning
    if calls := message.get("tool_calls"):
        functions = [(call.get("id", ""), call["function"]) for call in calls]
        plain["tool_calls"] = [tool_call(call_id, one["name"], one["arguments"]) for call_id, one in functions]
    return plain


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type", "function") != "function":
        raise Refused(400, f"tools of type {tool['type']!r} are not served: only functions are")
    function = {key: value for key, value in tool["function"].items() if value is not None and key != "strict"}
    return {"type": "function", "function": function}


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.name}", "object": kind, "created": int(time.time()), "model": reply.model}


def _finish_reason(reply: Reply) -> str:
    return "length" if reply.is_cut else "tool_calls" if reply.calls else "stop"


def _usage(reply: Reply) -> dict[str, int]:
    counts = {"prompt_tokens": reply.prompt_tok, "completion_tokens": reply.reply_tok}
    return counts | {"total_tokens": reply.prompt_tok + reply.reply_tok}


def _log_probs(reply: Reply) -> dict[str, Any] | None:
    return {"content": log_probs_of(reply), "refusal": None} if reply.tokens else None


API = Api(
    path="/v1/chat/completions",
    ping=OPENAI_PING,
    request_of=request_of,
    body_of=body_of,
    events_of=events_of,
    error_of=openai_error,
)
