"""What all APIs have in common: which parameters act, which are ignored, which are refused, and events of a stream.

Tokens are trained with the log-probs of the run's own distribution. A parameter that would sample from another one
cannot act: where the run has its own value it is ignored, else refused.
"""

import json
from typing import Any

from .messages import Refused

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
