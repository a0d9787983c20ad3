"""When a long count, or one that stands still, is worth a line."""


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


class Standstill:
    """Says when it is worth a line that nothing has moved: after a time, then after twice that time, and so on.

    Args:
        first_s: until the first line [s].
        now_s: when it began.

    Attributes:
        look_at_s: when it has to be looked again.
    """

    def __init__(self, *, first_s: float, now_s: float) -> None:
        self._first_s = self._patience_s = first_s
        self._last: object = None
        self._begin(now_s)

    def observe(self, progress: object, *, now_s: float) -> float | None:
        """For how long nothing has moved [s], if that is worth a line now."""
        self.look_at_s = now_s + self._first_s / 4
        if progress != self._last:
            self._last = progress
            self._begin(now_s)
        quiet_s = now_s - self._since_s
        if quiet_s < self._patience_s:
            return None
        self._patience_s = 2 * quiet_s
        return quiet_s

    def _begin(self, now_s: float) -> None:
        self._since_s = now_s
        self._patience_s = self._first_s
        self.look_at_s = now_s + self._first_s / 4
