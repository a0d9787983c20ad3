"""What an agent's result says: its score, and the fields beside it."""

from typing import Any

SCORE_NAMES = ("reward", "score")  # the first that a result has is the score
METRIC = "acc"  # what groups are filtered by, unless told otherwise: the score, where a result has none


def scored(result: Any) -> tuple[float, dict[str, Any]] | None:
    """(score, fields) of what an agent has returned, printed or posted; None if there is no score in it."""
    if isinstance(result, bool | int | float):
        return float(result), {METRIC: float(result)}
    if not isinstance(result, dict):
        return None
    name = next((name for name in SCORE_NAMES if result.get(name) is not None), None)
    if name is None or not isinstance(result[name], bool | int | float):
        return None
    score = float(result[name])
    fields = {key: value for key, value in result.items() if key != "reward"}
    return score, {METRIC: score} | fields
