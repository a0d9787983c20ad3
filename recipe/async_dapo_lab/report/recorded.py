"""What a run has recorded beside its metrics, as the report shows it: sampled responses as HTML, and `timeline.json`.

`timeline.json` is in the Trace Event format, which Perfetto opens: a process for the trainer with its spans, and one
for each engine with counters of its requests and of its KV cache, and with its weight updates where it gets them by
itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from .responses import SampledResponse
from .timeline import StepTimeline


def as_html(by_step: Mapping[int, Sequence[SampledResponse]]) -> str:
    """Those of the first, the middle and the last step; empty where none were recorded."""
    steps = sorted(step for step, responses in by_step.items() if responses)
    if not steps:
        return ""
    shown = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    return "<h3>Sampled responses</h3>" + "".join(
        f'<details class="responses"><summary>step {step}</summary>{"".join(_rows(by_step[step]))}</details>'
        for step in shown
    )


def _rows(responses: Sequence[SampledResponse]) -> Iterator[str]:
    for response in responses:
        yield f"<p><b>{escape(response.about)}</b></p><pre>{escape(response.prompt)}</pre>"
        for piece in response.pieces:
            yield f"<p>{escape(piece.origin)}</p><pre>{escape(piece.text)}</pre>"


def trace(steps: Sequence[StepTimeline]) -> dict[str, Any]:
    """The document of `timeline.json`."""
    return {"displayTimeUnit": "ms", "traceEvents": list(_events(steps))}


def _events(steps: Sequence[StepTimeline]) -> Iterator[dict[str, Any]]:
    servers = sorted(
        {server for step in steps for server in (*step.engines, *(one.replica_id for one in step.updates))}
    )
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
        for one in step.updates:
            pid, began_us, ended_us = process[one.replica_id], _us(one.began_s), _us(one.ended_s)
            name, length_us = f"weights {one.version}", ended_us - began_us
            yield {"ph": "X", "name": name, "pid": pid, "tid": 0, "ts": began_us, "dur": length_us}
            yield {"ph": "C", "name": "policy version", "pid": pid, "ts": ended_us, "args": {"version": one.version}}


def _us(seconds: float) -> int:
    return round(1e6 * seconds)
