"""How many reward processes have ended with a call, as a metric of each step."""

from ...config.options import AsyncDAPOConfig
from ...core.staleness import VersionShares
from ...rollout.manager import RoundRecord
from ...training.observer import Observer
from .declared import KILLED


class KilledProcesses(Observer):
    """Scorers count what ends a process; a round in which none has ended has a 0."""

    def __init__(self, options: AsyncDAPOConfig) -> None:
        pass

    def closed(self, record: RoundRecord, versions: VersionShares) -> dict[str, float]:
        return {KILLED: record.workers.counts.of_extensions.get(KILLED, 0.0)}
