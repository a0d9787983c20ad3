"""A worker's report of a round, all workers' reports in one, and what is known of a round that is over."""

from dataclasses import dataclass, field

from ..core.round import RoundSummary
from ..core.summed import Summed
from ..core.trajectory import PromptGroup, RoundCounts
from ..engines.load_balancer import LoadBalancerStats


@dataclass(slots=True, kw_only=True)
class WorkerReport(Summed):
    """A worker's report of a round, or the sum of all workers' reports."""

    unfinished: list[PromptGroup] = field(default_factory=list)
    counts: RoundCounts = field(default_factory=RoundCounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord(Summed):
    """A closed round, or a part of one that goes on."""

    summary: RoundSummary
    workers: WorkerReport  # of all of them
    rollout_s: float
    balancer: LoadBalancerStats
