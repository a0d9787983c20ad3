"""How far engines are behind the trainer, and how long their updates take, as metrics of each step."""

from statistics import fmean

from ...config.options import AsyncDAPOConfig
from ...core.staleness import VersionShares
from ...rollout.manager import RoundRecord
from ...training.observer import Observer
from .balancer import RollingStats


class UpdateMeter(Observer):
    """Tells what the load balancer has counted of updates."""

    def __init__(self, options: AsyncDAPOConfig) -> None:
        pass

    def closed(self, record: RoundRecord, versions: VersionShares) -> dict[str, float]:
        stats = record.balancer
        assert isinstance(stats, RollingStats)
        figures = {"load_balancer/versions_behind": float(stats.versions_behind)}
        return figures | ({"load_balancer/update_s": fmean(stats.updates_s)} if stats.updates_s else {})
