"""Who may send a request to which server: named leases on server slots, least KV cache first, waiters in FIFO order.

Pure state machine behind `GlobalLoadBalancer`. Every call returns the leases it granted; nothing here waits.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from .placement import Placement, Server
from .recent import RecentDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    lease_id: str
    server_id: str


@dataclass(frozen=True, slots=True)
class _Request:
    sticky_key: str | None
    prefix_tok: int
    kv_tok: float


class LeaseTable:
    """At most `max_inflight_per_server` leases on a server, or what `set_places` says, and at most `pool_size` in all.

    A lease is requested once and released once, in any order: a release that overtakes its request voids it. Releasing
    twice, or a lease that nobody holds, changes nothing.

    Args:
        max_inflight_per_server: slots of a server [count, >= 1].
        pool_size: slots of all servers together [count, >= 1]; None = no limit but the servers' own.
        remembered: how many overtaken releases and sticky keys are kept [count].
    """

    def __init__(self, *, max_inflight_per_server: int, pool_size: int | None = None, remembered: int = 65_536) -> None:
        if max_inflight_per_server < 1:
            raise ValueError(f"max_inflight_per_server={max_inflight_per_server}: must be >= 1")
        if pool_size is not None and pool_size < 1:
            raise ValueError(f"pool_size={pool_size}: must be >= 1 or None")
        self._max_per_server = max_inflight_per_server
        self._pool_size = pool_size
        self._placement = Placement()
        self._held: dict[str, str] = {}  # lease_id -> server_id
        self._waiting: OrderedDict[str, _Request] = OrderedDict()
        self._overtaken = RecentDict[str, None](remembered)
        self._sticky = RecentDict[str, str](remembered)

    @property
    def capacity(self) -> int:
        slots = sum(server.places for server in self._placement.servers.values())
        return slots if self._pool_size is None else min(slots, self._pool_size)

    @property
    def inflight(self) -> dict[str, int]:
        return {server_id: server.inflight for server_id, server in self._placement.servers.items()}

    def inflight_on(self, server_id: str) -> int:
        server = self._placement.servers.get(server_id)
        return 0 if server is None else server.inflight

    @property
    def peaks(self) -> dict[str, int]:
        """Server -> most requests in flight at once, since they were forgotten."""
        return {server_id: server.peak for server_id, server in self._placement.servers.items()}

    def forget_peaks(self) -> None:
        for server in self._placement.servers.values():
            server.peak = server.inflight

    @property
    def total_inflight(self) -> int:
        return len(self._held)

    @property
    def held_lease_ids(self) -> Set[str]:
        return self._held.keys()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def server_of(self, lease_id: str) -> str | None:
        """The server a lease is held on."""
        return self._held.get(lease_id)

    def is_waiting(self, lease_id: str) -> bool:
        return lease_id in self._waiting

    def add_servers(self, server_ids: Iterable[str]) -> list[Grant]:
        for server_id in server_ids:
            if server_id not in self._placement.servers:
                self._placement.add(server_id, Server(places=self._max_per_server))
        return self._grant_waiting()

    def remove_servers(self, server_ids: Iterable[str]) -> list[Grant]:
        """Forget servers and the leases on them: their holders will fail, and their later release is void."""
        for server_id in server_ids:
            server = self._placement.remove(server_id)
            for lease_id in server.leases if server is not None else ():
                del self._held[lease_id]
        return self._grant_waiting()

    def set_places(self, places: Mapping[str, int], weights: Mapping[str, float]) -> list[Grant]:
        """Size servers anew; a lease that is out stays, on a server with fewer places too.

        Args:
            places: server -> requests in flight, cut at `max_inflight_per_server` [count].
            weights: server -> how much KV cache it should hold, compared with the others [> 0].
        """
        for server_id, count in places.items():
            if (server := self._placement.servers.get(server_id)) is not None:
                server.places = max(1, min(count, self._max_per_server))
                server.weight = weights.get(server_id, server.weight)
                self._placement.note(server_id)
        return self._grant_waiting()

    def request(
        self, lease_id: str, sticky_key: str | None = None, *, prefix_tok: int = 0, kv_tok: float = 1.0
    ) -> list[Grant]:
        """Ask for a slot.

        Args:
            sticky_key: prefers the server that the key used last, while that is not too full.
            prefix_tok: context that is to be computed, unless it is cached there [tokens].
            kv_tok: KV cache that the request is expected to need [tokens, > 0]; 1 for all = requests are counted.
        """
        assert lease_id not in self._held and lease_id not in self._waiting, f"lease {lease_id} requested twice"
        if lease_id in self._overtaken:
            del self._overtaken[lease_id]
            return []
        self._waiting[lease_id] = _Request(sticky_key, prefix_tok, kv_tok)
        return self._grant_waiting()

    def release(self, lease_id: str) -> list[Grant]:
        server_id = self._held.pop(lease_id, None)
        if server_id is not None:
            self._placement.vacate(server_id, lease_id)
        elif lease_id in self._waiting:
            del self._waiting[lease_id]
        else:
            self._overtaken[lease_id] = None
        return self._grant_waiting()

    def withdraw_waiting(self) -> list[str]:
        """Void every waiting request. Returns their lease ids in order."""
        lease_ids = list(self._waiting)
        self._waiting.clear()
        return lease_ids

    def forget_sticky_keys(self) -> int:
        count = len(self._sticky)
        self._sticky.clear()
        return count

    def _grant_waiting(self) -> list[Grant]:
        grants = []
        while self._waiting and (self._pool_size is None or len(self._held) < self._pool_size):
            lease_id, request = next(iter(self._waiting.items()))
            last_id = None if request.sticky_key is None else self._sticky.get(request.sticky_key)
            server_id = self._placement.choose(last_id, request.prefix_tok)
            if server_id is None:
                break
            del self._waiting[lease_id]
            self._placement.occupy(server_id, lease_id, request.kv_tok)
            self._held[lease_id] = server_id
            if request.sticky_key is not None:
                self._sticky[request.sticky_key] = server_id
            grants.append(Grant(lease_id=lease_id, server_id=server_id))
        return grants
