"""Stop strings that begin before a seam between two requests: the engine of the second one cannot see them."""

from collections.abc import Callable, Sequence
from typing import Any

Decode = Callable[[Sequence[int]], str]

_MARGIN_TOK = 8  # before the seam, for text that starts in mid-token


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
        if end > (params.get("min_tokens") or 0) and any(string in spanning for string in strings):
            return end
        if len(text) >= len(before) + longest - 1:
            return None
    return None
