"""What the load balancer counts, between two times that it is asked."""

import time
from dataclasses import dataclass

from ..core.concurrency import ConcurrencyState, EngineLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancerStats:
    """Since the servers were opened, or since it was asked last; `servers` and `lost_servers` since the start."""

    servers: int
    lost_servers: int
    acquired: int
    wait_s_sum: float
    wait_s_max: float
    inflight_max: int
    busy_s: float  # sum over requests of the time they were in flight
    loads: dict[str, EngineLoad]  # as of the last stop, what they said of their engines
    concurrency: dict[str, float]  # see `Balance.figures`
    concurrency_reason: str
    concurrency_state: ConcurrencyState  # for the checkpoint


class InflightMeter:
    """Requests in flight over time, and how long others waited. `note` comes before their number changes."""

    def __init__(self) -> None:
        self.reset(0)

    def reset(self, inflight: int) -> None:
        self.acquired, self.wait_s_sum, self.wait_s_max = 0, 0.0, 0.0
        self.inflight_max = inflight
        self.busy_s, self._since = 0.0, time.monotonic()

    def note(self, inflight: int) -> None:
        now = time.monotonic()
        self.busy_s += inflight * (now - self._since)
        self._since = now

    def note_most(self, inflight: int) -> None:
        self.inflight_max = max(self.inflight_max, inflight)

    def note_wait(self, waited_s: float) -> None:
        self.acquired += 1
        self.wait_s_sum += waited_s
        self.wait_s_max = max(self.wait_s_max, waited_s)
