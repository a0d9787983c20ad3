"""A worker's report of a round, all workers' reports in one, and the closed round."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from ..core.journal import CallCounts
from ..core.round import RoundSummary
from ..core.trajectory import PromptGroup, TurnCounts
from ..engines.load_balancer import LoadBalancerStats


@dataclass(slots=True, kw_only=True)
class WorkerReport:
    """A worker's report of a round, or the sum of all workers' reports."""

    unfinished: list[PromptGroup] = field(default_factory=list)
    killed_reward_processes: int = 0
    calls: CallCounts = field(default_factory=CallCounts)
    turns: TurnCounts = field(default_factory=TurnCounts)
    diverged_tok: int = 0
    reprefilled_tok: list[int] = field(default_factory=list)  # context of each continued request

    @classmethod
    def merged(cls, reports: Sequence["WorkerReport"]) -> Self:
        return cls(
            unfinished=[group for report in reports for group in report.unfinished],
            killed_reward_processes=sum(report.killed_reward_processes for report in reports),
            calls=CallCounts.total(report.calls for report in reports),
            turns=TurnCounts.total(report.turns for report in reports),
            diverged_tok=sum(report.diverged_tok for report in reports),
            reprefilled_tok=[length for report in reports for length in report.reprefilled_tok],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """A closed round, or a part of one that goes on."""

    summary: RoundSummary
    workers: WorkerReport  # of all of them
    rollout_s: float
    stop_latency_s: float
    balancer: LoadBalancerStats

    def __add__(self, later: "RoundResult") -> "RoundResult":
        """This and what came after it, as one."""
        earlier_updates, updates = self.balancer.updates, later.balancer.updates
        balancer = replace(
            later.balancer,
            acquired=self.balancer.acquired + later.balancer.acquired,
            busy_s=self.balancer.busy_s + later.balancer.busy_s,
            inflight_max=max(self.balancer.inflight_max, later.balancer.inflight_max),
            updates=updates if earlier_updates is None or updates is None else earlier_updates + updates,
        )
        return RoundResult(
            summary=self.summary + later.summary,
            workers=WorkerReport.merged([self.workers, later.workers]),
            rollout_s=self.rollout_s + later.rollout_s,
            stop_latency_s=self.stop_latency_s + later.stop_latency_s,
            balancer=balancer,
        )
