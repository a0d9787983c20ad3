"""POST /v1/messages: Anthropic's messages as requests and replies."""

import json
from collections.abc import Iterator
from typing import Any

from ..gateway.messages import CONTEXT_FULL, Message, Refused, Reply, Request, tool_call
from ..http.apis import Api, check_parameters, event, number_of_tokens, stop_strings, text_of

_SAID_BEFORE = ("thinking", "redacted_thinking")  # blocks of the model's reasoning
_ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 500: "api_error"}


def request_of(body: dict[str, Any]) -> Request:
    """
    Raises:
        Refused: for what would change the distribution that tokens are sampled from.
    """
    ignored = check_parameters(body)
    messages: list[Message] = []
    if body.get("system"):
        messages.append({"role": "system", "content": text_of(body["system"])})
    for message in body["messages"]:
        messages += _messages_of(message["role"], message["content"])
    has_tools = (body.get("tool_choice") or {}).get("type") != "none"
    return Request(
        messages=messages,
        tools=[_tool(tool) for tool in body.get("tools") or () if has_tools],
        max_tok=number_of_tokens(body, "max_tokens"),
        stop=stop_strings(body.get("stop_sequences")),
        streams=bool(body.get("stream")),
        model=str(body.get("model", "")),
        ignored=ignored,
    )


def body_of(reply: Reply) -> dict[str, Any]:
    reason = "max_tokens" if reply.is_cut else "tool_use" if reply.calls else "end_turn"
    return {
        "id": f"msg_{reply.name}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": _blocks(reply),
        "stop_reason": reason if reply.stop_string is None else "stop_sequence",
        "stop_sequence": reply.stop_string,
        "usage": {"input_tokens": reply.prompt_tok, "output_tokens": reply.reply_tok},
    }


def events_of(reply: Reply, *, has_usage: bool) -> Iterator[bytes]:
    """The whole reply as a stream of events."""
    whole = body_of(reply)
    start = whole | {"content": [], "stop_reason": None, "stop_sequence": None}
    yield event({"type": "message_start", "message": start}, "message_start")
    for index, block in enumerate(whole["content"]):
        empty, deltas = _parts(block)
        yield event({"type": "content_block_start", "index": index, "content_block": empty}, "content_block_start")
        for delta in deltas:
            yield event({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
        yield event({"type": "content_block_stop", "index": index}, "content_block_stop")
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    yield event({"type": "message_delta", "delta": end, "usage": whole["usage"]}, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")


def error_of(refused: Refused) -> dict[str, Any]:
    kind = _ERROR_TYPES.get(refused.status, "invalid_request_error")
    words = "prompt is too long: " if refused.code == CONTEXT_FULL else ""  # by which agents know it: there is no code
    return {"type": "error", "error": {"type": kind, "message": f"{words}{refused}"}}


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": reply.name})
    if reply.text or not reply.calls:
        blocks.append({"type": "text", "text": reply.text})
    for call in reply.calls:
        blocks.append({"type": "tool_use", "id": call.call_id, "name": call.name, "input": json.loads(call.arguments)})
    return blocks


def _parts(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins in a stream, and what is added to it."""
    if block["type"] == "text":
        return block | {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        added = [{"type": "thinking_delta", "thinking": block["thinking"]}]
        return block | {"thinking": "", "signature": ""}, [
            *added,
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]


def _messages_of(role: str, content: Any) -> list[Message]:
    """The results of tools first, each a message of its own, then what else is in the blocks."""
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    of_type: dict[str, list[dict[str, Any]]] = {}
    for block in content:
        of_type.setdefault(block["type"], []).append(block)
    if others := of_type.keys() - {"text", "tool_use", "tool_result", *_SAID_BEFORE}:
        raise Refused(400, f"blocks of type {sorted(others)} are not served: only text and tools are")
    results = of_type.get("tool_result", [])
    messages: list[Message] = [
        {"role": "tool", "content": text_of(block.get("content")), "tool_call_id": block["tool_use_id"]}
        for block in results
    ]
    if results and not of_type.keys() - {"tool_result"}:
        return messages
    message: Message = {"role": role, "content": "".join(block["text"] for block in of_type.get("text", []))}
    if thoughts := "".join(block["thinking"] for block in of_type.get("thinking", [])):
        message["reasoning_content"] = thoughts
    if uses := of_type.get("tool_use"):
        message["tool_calls"] = [tool_call(use["id"], use["name"], json.dumps(use["input"])) for use in uses]
    return [*messages, message]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if "input_schema" not in tool:  # a tool of Anthropic's own, such as web search
        raise Refused(400, f"tool {tool.get('name')!r} has no input_schema: only tools that the agent runs are served")
    described = {"description": tool["description"]} if tool.get("description") else {}
    function = {"name": tool["name"], **described, "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}


API = Api(
    path="/v1/messages",
    ping=b'event: ping\ndata: {"type": "ping"}\n\n',
    request_of=request_of,
    body_of=body_of,
    events_of=events_of,
    error_of=error_of,
)
