"""What the trainer was at, and when."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One thing after the other; times as of one clock [s]."""

    name: str
    began_s: float
    ended_s: float


class Spans:
    """Spans that follow one another: what begins ends what was before."""

    def __init__(self) -> None:
        self._open: tuple[str, float] | None = None
        self._ended: list[Span] = []

    def begin(self, name: str, now_s: float) -> None:
        self.end(now_s)
        self._open = name, now_s

    def end(self, now_s: float) -> None:
        if self._open is not None:
            name, began_s = self._open
            self._ended.append(Span(name, began_s, now_s))
            self._open = None

    def take(self) -> tuple[Span, ...]:
        """Those that have ended since it was asked last."""
        ended, self._ended = tuple(self._ended), []
        return ended
