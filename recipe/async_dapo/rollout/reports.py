"""A worker's report of a round, all workers' reports in one, and what is known of a round that is over."""

from dataclasses import dataclass, field

from ..core.journal import CallCounts
from ..core.round import RoundSummary
from ..core.summed import Summed
from ..core.trajectory import PromptGroup, TurnCounts
from ..engines.load_balancer import LoadBalancerStats


@dataclass(slots=True, kw_only=True)
class WorkerReport(Summed):
    """A worker's report of a round, or the sum of all workers' reports."""

    unfinished: list[PromptGroup] = field(default_factory=list)
    killed_reward_processes: int = 0
    calls: CallCounts = field(default_factory=CallCounts)
    turns: TurnCounts = field(default_factory=TurnCounts)
    diverged_tok: int = 0
    reprefilled_tok: list[int] = field(default_factory=list)  # of the context of each continued request
    found_tok: int = 0  # of these contexts, in a cache


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord(Summed):
    """A closed round, or a part of one that goes on."""

    summary: RoundSummary
    workers: WorkerReport  # of all of them
    rollout_s: float
    balancer: LoadBalancerStats
