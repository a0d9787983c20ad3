"""A request that was interrupted and is continued by another one: what acts over the seam as if there were none.

The engine sees what was generated as part of the prompt. Temperature, top-p, top-k and the repetition penalty, which
counts the prompt, too, do not mind. `min_tokens` and `seed` are moved on, `stop` strings over the seam are found here.
What an engine counts or follows over the response alone starts anew, and of `extra_args` nobody knows: such a request
is never continued.
"""

from collections.abc import Callable, Sequence
from typing import Any

_OFF: tuple[Any, ...] = (None, 0, 0.0, [], {}, "")
_OVER_THE_RESPONSE = (
    "presence_penalty",
    "frequency_penalty",
    "structured_outputs",
    "guided_decoding",
    "bad_words",
    "thinking_token_budget",
    "repetition_detection",
    "extra_args",
)
_MARGIN_TOK = 8  # before the seam, for text that starts in mid-token

Decode = Callable[[Sequence[int]], str]


def not_continued(params: dict[str, Any]) -> list[str]:
    """The parameters that keep a request from being continued."""
    return [name for name in _OVER_THE_RESPONSE if params.get(name) not in _OFF]


def continued(params: dict[str, Any], generated_tok: int, limit_tok: int) -> dict[str, Any]:
    """The parameters of a request that goes on after so many tokens, for so many further ones at most."""
    moved: dict[str, Any] = {"max_tokens": limit_tok}
    if params.get("min_tokens"):  # engines refuse one above the other; a request that reaches its limit has enough
        moved["min_tokens"] = min(max(0, params["min_tokens"] - generated_tok), limit_tok)
    if params.get("seed") is not None:
        moved["seed"] = params["seed"] + generated_tok
    return params | moved


def end_of_stop(tokens: Sequence[int], seam_tok: int, params: dict[str, Any], decode: Decode) -> int | None:
    """How many tokens there are up to the end of a stop string that began before the seam; None without one."""
    stop = params.get("stop") or []
    strings = [stop] if isinstance(stop, str) else list(stop)
    if not strings or seam_tok == 0:
        return None
    longest = max(map(len, strings))
    start = max(0, seam_tok - longest - _MARGIN_TOK)
    before = decode(tokens[start:seam_tok])
    for end in range(seam_tok + 1, len(tokens) + 1):
        text = decode(tokens[start:end])
        spanning = text[max(0, len(before) - longest + 1) : len(before) + longest - 1]
        if end > params.get("min_tokens", 0) and any(string in spanning for string in strings):
            return end
        if len(text) >= len(before) + longest - 1:
            return None
    return None
