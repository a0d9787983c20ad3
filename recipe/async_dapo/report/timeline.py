"""What every engine held and what the trainer was at, over time: recorded a line a step, for Perfetto and the report.

`timeline.json` is in the Trace Event format, which Perfetto opens: a process for the trainer with its spans, and one
for each engine with counters of its requests and of its KV cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.load_samples import LoadSample
from ..core.spans import Span
from .bounded_file import read_lines

_DIGITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """Of one step. `LoadSample` and `Span` in seconds since the epoch while it is recorded, since the start of the run
    when it is read."""

    spans: Sequence[Span] = ()
    engines: Mapping[str, Sequence[LoadSample]] = field(default_factory=dict)


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
    return {"step": step, "spans": spans, "engines": engines}


def read_timeline(path: Path) -> list[StepTimeline]:
    """By step; empty where none was recorded."""
    return [
        StepTimeline(
            spans=[Span(*span) for span in line["spans"]],
            engines={
                server: [LoadSample(*sample) for sample in samples] for server, samples in line["engines"].items()
            },
        )
        for line in read_lines(path)
    ]


def trace(steps: Sequence[StepTimeline]) -> dict[str, Any]:
    """The document of `timeline.json`."""
    return {"displayTimeUnit": "ms", "traceEvents": list(_events(steps))}


def _events(steps: Sequence[StepTimeline]) -> Iterator[dict[str, Any]]:
    servers = sorted({server for step in steps for server in step.engines})
    process = {server: 1 + index for index, server in enumerate(servers)}
    yield {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "trainer"}}
    for server in servers:
        yield {"ph": "M", "name": "process_name", "pid": process[server], "args": {"name": f"engine {server}"}}
    for step in steps:
        for span in step.spans:
            began_us, length_us = _us(span.began_s), _us(span.ended_s - span.began_s)
            yield {"ph": "X", "name": span.name, "pid": 0, "tid": 0, "ts": began_us, "dur": length_us}
            if span.name == "rollout":
                yield {"ph": "i", "name": "round stopped", "s": "g", "pid": 0, "tid": 0, "ts": _us(span.ended_s)}
        for server, samples in step.engines.items():
            for sample in samples:
                counter = {"ph": "C", "pid": process[server], "ts": _us(sample.time_s)}
                yield counter | {"name": "requests", "args": {"running": sample.running, "waiting": sample.waiting}}
                yield counter | {"name": "KV cache", "args": {"used": sample.kv}}


def _us(seconds: float) -> int:
    return round(1e6 * seconds)
