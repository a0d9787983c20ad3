"""How often a long count is worth a line."""


class Milestones:
    """Says when another part of a count has passed, each part once.

    Args:
        parts: lines in all, the last one when everything is done [count, >= 1].
    """

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._passed = 0

    def reached(self, done: int, total: int) -> bool:
        """Whether a further part has been passed since it was asked last."""
        passed = done * self._parts // total if total else 0
        is_new = passed > self._passed
        self._passed = max(passed, self._passed)
        return is_new
