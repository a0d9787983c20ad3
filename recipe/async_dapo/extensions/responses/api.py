"""POST /v1/responses: OpenAI's responses as requests and replies.

Nothing is stored between requests: each brings its whole conversation as `input`. Neighbouring items of the model's
(reasoning, a message, calls) are one reply, as they were when it was sent.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import count
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
    other_distribution,
    text_of,
)

_LOG_PROBS = "message.output_text.logprobs"  # in `include`
_CALL, _RESULT, _SAID, _THOUGHT = "function_call", "function_call_output", "message", "reasoning"
_NOT_SERVED = {  # why, by parameter
    "previous_response_id": "no response is stored; send the whole conversation as input",
    "conversation": "no conversation is stored; send all of it as input",
    "prompt": "no prompt is stored; send instructions and input",
    "background": "no response is stored; wait for it, or stream it",
}


def request_of(body: dict[str, Any]) -> Request:
    """
    Raises:
        Refused: for what would change the distribution that tokens are sampled from, or takes what is stored.
    """
    ignored = check_parameters(body)
    for name, why in _NOT_SERVED.items():
        if body.get(name):
            raise Refused(400, f"{name} is not served: {why}")
    if body.get("truncation") == "auto":
        raise Refused(400, "truncation=auto is not served: the agent is told when the context is full, and may compact")
    if ((body.get("text") or {}).get("format") or {}).get("type", "text") != "text":
        raise other_distribution("text.format")
    messages: list[Message] = []
    if instructions := body.get("instructions"):
        messages.append({"role": "system", "content": text_of(instructions)})
    given = body["input"]
    messages += [{"role": "user", "content": given}] if isinstance(given, str) else _messages_of(given)
    return Request(
        messages=messages,
        tools=[_tool(tool) for tool in body.get("tools") or () if body.get("tool_choice") != "none"],
        max_tok=number_of_tokens(body, "max_output_tokens"),
        streams=bool(body.get("stream")),
        has_log_probs=_LOG_PROBS in (body.get("include") or ()),
        model=str(body.get("model", "")),
        ignored=ignored,
    )


def body_of(reply: Reply) -> dict[str, Any]:
    usage = {
        "input_tokens": reply.prompt_tok,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": reply.reply_tok,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tok + reply.reply_tok,
    }
    return {
        "id": f"resp_{reply.name}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if reply.is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if reply.is_cut else None,
        "error": None,
        "model": reply.model,
        "output": list(_items(reply)),
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "usage": usage,
    }


def events_of(reply: Reply, *, has_usage: bool) -> Iterator[bytes]:
    """The whole reply as a stream of events."""
    whole, numbers = body_of(reply), count()

    def sent(kind: str, **fields: Any) -> bytes:
        return event({"type": f"response.{kind}", "sequence_number": next(numbers), **fields}, f"response.{kind}")

    begun = whole | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield sent("created", response=begun)
    yield sent("in_progress", response=begun)
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        empty: dict[str, Any] = {"arguments": ""} if item["type"] == _CALL else {"content": []}
        yield sent("output_item.added", output_index=index, item=item | {"status": "in_progress"} | empty)
        if item["type"] == _CALL:
            yield sent("function_call_arguments.delta", delta=item["arguments"], **at)
            yield sent("function_call_arguments.done", arguments=item["arguments"], name=item["name"], **at)
        for number, part in enumerate(item.get("content", ())):
            here, text = at | {"content_index": number}, part["text"]
            more = {"logprobs": part["logprobs"]} if part["type"] == "output_text" else {}
            yield sent("content_part.added", part=part | {"text": ""}, **here)
            yield sent(f"{part['type']}.delta", delta=text, **here, **more)
            yield sent(f"{part['type']}.done", text=text, **here, **more)
            yield sent("content_part.done", part=part, **here)
        yield sent("output_item.done", output_index=index, item=item)
    yield sent(whole["status"], response=whole)


def _items(reply: Reply) -> Iterator[dict[str, Any]]:
    status = "incomplete" if reply.is_cut else "completed"
    if reply.reasoning:
        content = [{"type": "reasoning_text", "text": reply.reasoning}]
        yield {"id": f"rs_{reply.name}", "type": _THOUGHT, "summary": [], "content": content}
    if reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": log_probs_of(reply)}
        yield {"id": f"msg_{reply.name}", "type": _SAID, "role": "assistant", "status": status, "content": [part]}
    for number, call in enumerate(reply.calls):
        made = {"call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        yield {"id": f"fc_{reply.name}_{number}", "type": _CALL, "status": status, **made}


def _messages_of(items: Iterable[dict[str, Any]]) -> Iterator[Message]:
    reply: Message | None = None  # of the model, whose items are being put together
    for item in items:
        kind = item.get("type", _SAID)
        if kind in (_CALL, _THOUGHT) or (kind == _SAID and item["role"] == "assistant"):
            reply = {"role": "assistant", "content": ""} if reply is None else reply
            _add_to(reply, kind, item)
            continue
        if reply is not None:
            yield reply
            reply = None
        if kind == _RESULT:
            yield {"role": "tool", "content": text_of(item["output"]), "tool_call_id": item["call_id"]}
        elif kind == _SAID:
            role = "system" if item["role"] == "developer" else item["role"]
            yield {"role": role, "content": text_of(item["content"])}
        else:
            raise Refused(400, f"input of type {kind!r} is not served: only messages, and functions' calls, are")
    if reply is not None:
        yield reply


def _add_to(reply: Message, kind: str, item: dict[str, Any]) -> None:
    if kind == _CALL:
        call = tool_call(item["call_id"], item["name"], item["arguments"])
        reply.setdefault("tool_calls", []).append(call)
    elif kind == _SAID:
        reply["content"] += text_of(item["content"])
    elif thought := "".join(part["text"] for part in item.get("content") or ()):
        reply["reasoning_content"] = reply.get("reasoning_content", "") + thought


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool["type"] != "function":
        raise Refused(400, f"tools of type {tool['type']!r} are not served: only functions, which the agent runs, are")
    given = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": given}


def late_error(told: dict[str, Any], number: int) -> dict[str, Any]:
    """As OpenAI describes the event, and with `error`, by which its SDK knows that it has to raise."""
    error = told["error"]
    own = {name: error[name] for name in ("code", "message", "param")}
    return {"type": "error", "sequence_number": number, **own, "error": error}


API = Api(
    path="/v1/responses",
    ping=OPENAI_PING,
    request_of=request_of,
    body_of=body_of,
    events_of=events_of,
    error_of=openai_error,
    late_error=late_error,
)
