"""Whether an engine stands still: it answers calls, has requests, and nothing comes of any of them."""

STANDSTILL_TIMES = 5  # as long as an engine may take to answer a call; the first token of a long prompt takes its time


class Standstill:
    """Notes how far an engine has come, whenever somebody looks at it."""

    def __init__(self) -> None:
        self._seen: int | None = None
        self._since_s = 0.0

    def look(self, now_s: float, *, requests: int, outputs: int) -> float:
        """For how long the engine has had requests and yielded nothing [s].

        Args:
            requests: in flight, that the engine may work on.
            outputs: that it has yielded so far; any number that grows with each.
        """
        if not requests:
            self._seen = None
        elif outputs != self._seen:
            self._seen, self._since_s = outputs, now_s
        return 0.0 if self._seen is None else now_s - self._since_s
