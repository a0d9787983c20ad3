"""The APIs that agents may ask by, each an extension, and what they have in common: which parameters act, which are
ignored, which are refused, events of a stream, and OpenAI's errors.

Tokens are trained with the log-probs of the run's own distribution. A parameter that would sample from another one
cannot act: where the run has its own value it is ignored, else refused.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...config.extensions import declared, load, not_here, not_in_copy
from ..gateway.messages import Refused, Reply, Request

OF_EXTENSIONS = {  # which a copy may lack
    "chat_completions": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic_messages": "/v1/messages",
}
OPENAI_PING = b": ping\n\n"

_IGNORED = (  # the run has its own
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "chat_template_kwargs",
)
_REFUSED = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "functions",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "bad_words",
    "min_tokens",
    "ignore_eos",
    "structured_outputs",
    "output_config",
    "prediction",
    "audio",
)
_NEUTRAL: tuple[Any, ...] = (None, 0, 0.0, {}, [], "", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """A form in which agents ask, and are told.

    Attributes:
        path: that requests are posted to.
        ping: what no client takes for a reply, in a stream.
        request_of: of a body; raises `Refused` for what would change the distribution that tokens are sampled from.
        body_of: of a whole reply.
        events_of: the reply as a stream, with `has_usage`, whether the client wants its tokens counted.
        error_of: what a client is told that is refused.
        late_error: what an error that `error_of` has made is as the last event of a stream, after so many others.
    """

    path: str
    ping: bytes
    request_of: Callable[[dict[str, Any]], Request]
    body_of: Callable[[Reply], dict[str, Any]]
    events_of: Callable[..., Iterator[bytes]]
    error_of: Callable[[Refused], dict[str, Any]]
    late_error: Callable[[dict[str, Any], int], dict[str, Any]] = lambda told, number: told


def apis() -> Iterator[Api]:
    """Those of this copy; one that it lacks refuses whatever it is asked."""
    for name, one in declared().items():
        if one.api:
            yield load(name, one.api)
    for name in _absent_names():
        yield _absent(name, OF_EXTENSIONS[name])


def absent_apis() -> list[str]:
    """What to tell before a run of those that this copy lacks: an agent that asks by one has no reply."""
    return [f"requests to {OF_EXTENSIONS[name]} are refused: {not_here(name)}" for name in _absent_names()]


def _absent_names() -> list[str]:
    return [name for name in OF_EXTENSIONS if name not in declared()]


def _absent(name: str, path: str) -> Api:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Refused(404, f"{path} is not served: {not_in_copy(name, 'ask by another API')}", "not_found")

    return Api(path=path, ping=OPENAI_PING, request_of=refuse, body_of=refuse, events_of=refuse, error_of=openai_error)


def check_parameters(body: dict[str, Any]) -> tuple[str, ...]:
    """Names of the parameters that are ignored.

    Raises:
        Refused: for those that would change the distribution.
    """
    for name in _REFUSED:
        is_neutral = body.get(name) in _NEUTRAL or (name == "repetition_penalty" and body[name] == 1)
        if not is_neutral:
            raise other_distribution(name)
    kind = body.get("response_format") or {}
    if isinstance(kind, dict) and kind.get("type", "text") != "text":
        raise other_distribution("response_format")
    if body.get("n") not in (None, 1):
        raise Refused(400, "n must be 1: ask several times, also at once, for several answers")
    choice = body.get("tool_choice")
    is_one = {
        "parallel_tool_calls": body.get("parallel_tool_calls") is False,
        "disable_parallel_tool_use": isinstance(choice, dict) and choice.get("disable_parallel_tool_use"),
    }  # of OpenAI and Anthropic: a model makes as many calls at once as it likes
    choice = choice.get("type") if isinstance(choice, dict) else choice
    if choice not in (None, "auto", "none"):
        raise other_distribution(f"tool_choice={choice}")
    return *(name for name in _IGNORED if body.get(name) is not None), *(name for name in is_one if is_one[name])


def other_distribution(name: str) -> Refused:
    """Of a parameter that cannot act."""
    what = "it would sample from another distribution than the one that is trained; leave it out"
    return Refused(400, f"{name} is not served: {what}")


def number_of_tokens(body: dict[str, Any], *names: str) -> int | None:
    """The first of these parameters that is given.

    Raises:
        Refused: if it is no positive number.
    """
    for name in names:
        given = body.get(name)
        if given is not None:
            if isinstance(given, bool) or not isinstance(given, int) or given < 1:
                raise Refused(400, f"{name} must be a positive number of tokens, not {given!r}")
            return given
    return None


def text_of(content: Any) -> str:
    """A message's content, which may be absent, text, or parts.

    Raises:
        Refused: for anything else, and for parts that are no text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):  # of an object the keys would be read
        raise Refused(400, f"content must be text or a list of parts, not {type(content).__name__}")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif part.get("type") in ("text", "input_text", "output_text"):
            texts.append(part["text"])
        elif part.get("type") == "refusal":
            texts.append(part["refusal"])
        else:
            raise Refused(400, f"content of type {part.get('type')!r} is not served: only text is")
    return "".join(texts)


def stop_strings(given: Any) -> tuple[str, ...]:
    """
    Raises:
        Refused: for what is no list of texts: of a text each letter would be one, of an object each key.
    """
    strings = given or []
    if not isinstance(strings, list) or not all(isinstance(one, str) and one for one in strings):
        raise Refused(400, f"stop strings must be a list of texts, not {given!r:.300}")
    return tuple(strings)


def event(data: dict[str, Any], name: str = "") -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def openai_error(refused: Refused) -> dict[str, Any]:
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    error = {"message": str(refused), "type": kind, "param": None, "code": refused.code}
    return {"error": error}


def log_probs_of(reply: Reply) -> list[dict[str, Any]]:
    """Of each token that was sampled, if they were asked for, as OpenAI has them."""
    return [
        {"token": text, "logprob": log_prob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, log_prob in reply.tokens
    ]
