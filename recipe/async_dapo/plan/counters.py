"""What servers have done, to be added up and subtracted."""

from dataclasses import dataclass, fields
from typing import Any

from ..core.concurrency import EngineLoad


@dataclass(slots=True)
class EngineCounters:
    """What a server has done since it was made."""

    generated_tok: int = 0
    prefilled_tok: int = 0
    recomputed_tok: int = 0  # of these: after a preemption
    preemptions: int = 0
    busy_s: float = 0.0  # with at least one running request
    prefill_s: float = 0.0  # of these: computing contexts
    request_s: float = 0.0  # sum over running requests
    steps: int = 0
    step_requests2: int = 0  # squares of the running requests, summed over steps
    kv_tok_s: float = 0.0  # tokens in the cache, integrated over time

    def add_steps(self, steps: int, running: int) -> None:
        """Steps in which every running request got a token."""
        self.steps += steps
        self.generated_tok += steps * running
        self.step_requests2 += steps * running**2

    def load(self, *, kv_room_tok: int, max_num_seqs: int, kv_peak: float) -> EngineLoad:
        """What a vLLM server says that has done this."""
        return EngineLoad(
            kv_room_tok=kv_room_tok,
            max_num_seqs=max_num_seqs,
            kv_peak=kv_peak,
            kv_tok_s=self.kv_tok_s,
            preemptions=self.preemptions,
            generated_tok=self.generated_tok,
            busy_s=self.busy_s,
            request_s=self.request_s,
            steps=self.steps,
            step_requests=self.generated_tok,
            step_requests2=self.step_requests2,
        )

    def __add__(self, other: "EngineCounters") -> "EngineCounters":
        return EngineCounters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: "EngineCounters") -> "EngineCounters":
        return EngineCounters(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def in_measure(self) -> dict[str, Any]:
        """What a `StepMeasure` takes of it."""
        taken = ("generated_tok", "prefilled_tok", "recomputed_tok", "preemptions", "prefill_s")
        return {name: getattr(self, name) for name in taken} | {"server_busy_s": self.busy_s}
