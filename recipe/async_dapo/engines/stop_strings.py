"""Stop strings that begin before a seam between two requests: the engine of the second one cannot see them."""

from collections.abc import Callable, Sequence
from typing import Any

from ..core.trajectory import Segment, Turn

Decode = Callable[[Sequence[int]], str]

_MARGIN_TOK = 8  # before the seam, for text that starts in mid-token


def end_at_stop(turn: Turn, seam_tok: int, params: dict[str, Any], decode: Decode) -> None:
    """Such a string ends the turn."""
    end_tok = end_of_stop(turn.raw_response_ids, seam_tok, params, decode)
    if end_tok is not None:
        cut(turn, end_tok)
        turn.finish_reason = "stop"


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


def cut(turn: Turn, num_tokens: int) -> None:
    """Keep so many tokens of the turn."""
    kept: list[Segment] = []
    for segment in turn.segments:
        count = min(len(segment.token_ids), num_tokens - sum(len(one.token_ids) for one in kept))
        if count > 0:
            ids, log_probs = segment.token_ids[:count], segment.rollout_log_probs[:count]
            kept.append(Segment(policy_version=segment.policy_version, token_ids=ids, rollout_log_probs=log_probs))
    turn.segments = kept
    turn.routes = turn.routes and turn.routes.first(turn.prompt_len_tok + num_tokens - 1)
