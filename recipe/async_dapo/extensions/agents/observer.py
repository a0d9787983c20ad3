"""The metrics of calls and kept loops."""

from collections.abc import Sequence

from ...config.options import AsyncDAPOConfig
from ...core.staleness import VersionShares
from ...core.trajectory import PromptGroup
from ...rollout.manager import RoundRecord
from ...training.observer import Observer
from .counts import CallCounts


class CallsObserver(Observer):
    """Tells of each step what its trajectories have called, and which loops were gone."""

    def __init__(self, options: AsyncDAPOConfig) -> None:
        self._lost_loops = 0  # of groups that were retired since a step was closed

    def retired(self, groups: Sequence[PromptGroup]) -> None:
        self._lost_loops += sum(one.is_lost for group in groups for one in group.trajectories)

    def closed(self, record: RoundRecord, versions: VersionShares) -> dict[str, float]:
        lost_loops, self._lost_loops = self._lost_loops, 0
        counts = CallCounts.of(record.workers.counts)
        return {
            "calls/replayed": counts.replayed,
            "calls/carried": counts.carried,
            "calls/kept_loops": counts.kept_loops,
            "calls/lost_loops": lost_loops,
            "calls/failed": counts.failed,
            "calls/failed_ratio": counts.failed / max(1, counts.answered),
            "calls/waiting_max": record.summary.idle_max,
            "turns/calls_s": counts.seconds / max(1, record.workers.counts.ended),
        }
