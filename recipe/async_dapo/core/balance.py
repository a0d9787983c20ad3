"""The load balancer's decisions: which server takes a request, and how many requests each may have."""

from collections.abc import Mapping
from dataclasses import dataclass

from .concurrency import ConcurrencyController, EngineLoad
from .leases import Grant, LeaseTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """A lease that is asked for.

    Attributes:
        request_id: those with the same go to the same server, while that is not too full.
        group: whose answer is generated.
    """

    lease_id: str
    request_id: str
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A lease that is given back."""

    lease_id: str
    server_id: str = ""
    load: EngineLoad | None = None  # what the server said with its answer


class Balance:
    """Leases on servers that are sized by what their engines report.

    Args:
        max_per_server: requests in flight on a server, whatever the capacity of its engine [count, >= 1].
        pool_size: requests in flight on all servers together [count, >= 1]; None = no limit but the servers' own.
            Groups start only while there is capacity; trajectories that come back from calls of tools wait for it here.
        sizes_itself: whether servers get the capacity of their engines; else all have the maximum.
        first_context_tok: expected of a request before any has been seen [tokens].
        gathers_groups: whether a group's requests go to one server, which drafts from them, where its load allows.
        keeps_kv: whether engines keep what they know of interrupted requests over the weight update.
    """

    def __init__(
        self,
        *,
        max_per_server: int,
        pool_size: int | None,
        sizes_itself: bool,
        first_context_tok: int,
        gathers_groups: bool = False,
        keeps_kv: bool = False,
    ) -> None:
        self.leases = LeaseTable(max_inflight_per_server=max_per_server, pool_size=pool_size)
        self.controller = ConcurrencyController(first_context_tok=first_context_tok, most_per_server=max_per_server)
        self._sizes_itself = sizes_itself
        self._gathers_groups = gathers_groups
        self._keeps_kv = keeps_kv
        self._is_open = False
        self.steered = 0  # in this round

    @property
    def capacity(self) -> int:
        """Requests that the servers may have in flight together [count]."""
        knows_engines = self._sizes_itself and self.controller.total > 0
        return self.controller.total if knows_engines else self.leases.capacity

    def open(self, loads: Mapping[str, EngineLoad]) -> list[Grant]:
        """A round begins on these servers."""
        self._is_open, self.steered = True, 0
        self.leases.forget_peaks()
        if self._keeps_kv:
            self.leases.pin_last_servers()
        elif self._gathers_groups:  # under new weights no prefix is cached: groups come together again
            self.leases.forget_sticky_keys()
        self.controller.open(loads)
        return self._apply()

    def join(self, server_id: str, load: EngineLoad | None) -> list[Grant]:
        """A server that was added in mid-round."""
        if load is not None:
            self.controller.join(server_id, load)
        return self.leases.add_servers([server_id]) + self._apply()

    def leave(self, server_id: str) -> list[Grant]:
        self.controller.leave(server_id)
        return self.leases.remove_servers([server_id])

    def close(self, loads: Mapping[str, EngineLoad]) -> None:
        """A round has ended; what is learned from it counts from the next one on."""
        self._is_open = False
        self.controller.end_round(loads, self.leases.peaks)

    def request(self, lease_id: str, sticky_key: str | None, *, group: str | None = None) -> list[Grant]:
        """Ask for a server; see `LeaseTable.request`.

        Args:
            group: whose answer is generated.
        """
        return self.leases.request(lease_id, sticky_key, group=group if self._gathers_groups else None)

    def release(self, returned: Returned) -> list[Grant]:
        """Give a lease back, and learn from what came with it."""
        grants: list[Grant] = []
        if returned.load is not None and self._sizes_itself and self._is_open:
            grants = self._steer(returned.server_id, returned.load)
        return grants + self.leases.release(returned.lease_id)

    def _steer(self, server_id: str, load: EngineLoad) -> list[Grant]:
        if not self.controller.steer(server_id, load, inflight=self.leases.inflight_on(server_id)):
            return []
        self.steered += 1
        return self.leases.set_capacities({server_id: self.controller.capacity_of(server_id)})

    def figures(self) -> dict[str, float]:
        return self.controller.figures() | {"capacity": self.capacity, "steered": self.steered}

    def _apply(self) -> list[Grant]:
        if not self._sizes_itself:
            return []
        return self.leases.set_capacities(self.controller.capacities)
