"""What servers have done, to be added up and subtracted."""

from dataclasses import dataclass, fields
from typing import Any


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
    kv_tok_s: float = 0.0  # tokens in the cache, integrated over time

    def __add__(self, other: "EngineCounters") -> "EngineCounters":
        return EngineCounters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: "EngineCounters") -> "EngineCounters":
        return EngineCounters(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def in_measure(self) -> dict[str, Any]:
        """What a `StepMeasure` takes of it."""
        taken = ("generated_tok", "prefilled_tok", "recomputed_tok", "preemptions", "prefill_s")
        return {name: getattr(self, name) for name in taken} | {"server_busy_s": self.busy_s}
