"""What every engine held and what the trainer was at, over time: recorded a line a step, for the report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..run_files import read_lines
from .samples import LoadSample

MOST_SAMPLES = 256  # of a sum, in a step
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Span:
    """One thing after the other; times as of one clock [s]."""

    name: str
    began_s: float
    ended_s: float


class Spans:
    """What the trainer was at, and when: spans that follow one another. What begins ends what was before."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """Of one step. Times: since the epoch while it is recorded, since the start of the run when it is read [s]."""

    spans: Sequence[Span] = ()
    engines: Mapping[str, Sequence[LoadSample]] = field(default_factory=dict)
    waiting_for_calls: Sequence[tuple[float, int]] = ()  # trajectories, from each time on


def together(counts: Iterable[Sequence[tuple[float, int]]]) -> list[tuple[float, int]]:
    """The sum of counts over time, each from each time on, in a bounded number of samples."""
    changes = sorted(
        (time_s, count - before)
        for one in counts
        for (time_s, count), (_, before) in zip(one, [(0.0, 0), *one], strict=False)
    )
    sums = dict(zip((time_s for time_s, _ in changes), accumulate(change for _, change in changes), strict=True))
    return [*sums.items()][-1 :: -1 - len(sums) // MOST_SAMPLES][::-1]


def line_of(step: int, timeline: StepTimeline, *, origin_s: float) -> Mapping[str, Any]:
    """
    Args:
        origin_s: when the run was started [s since the epoch].
    """

    def since(time_s: float) -> float:
        return round(time_s - origin_s, _DIGITS)

    engines = {
        server: [[since(one.time_s), one.running, one.waiting, round(one.kv, _DIGITS)] for one in samples]
        for server, samples in timeline.engines.items()
    }
    spans = [[span.name, since(span.began_s), since(span.ended_s)] for span in timeline.spans]
    waiting = [[since(time_s), count] for time_s, count in timeline.waiting_for_calls]
    return {"step": step, "spans": spans, "engines": engines, "waiting_for_calls": waiting}


def read_timeline(path: Path) -> list[StepTimeline]:
    """By step; empty where none was recorded."""
    return [
        StepTimeline(
            spans=[Span(*span) for span in line["spans"]],
            engines={
                server: [LoadSample(*sample) for sample in samples] for server, samples in line["engines"].items()
            },
            waiting_for_calls=[(time_s, count) for time_s, count in line.get("waiting_for_calls", ())],
        )
        for line in read_lines(path)
    ]
