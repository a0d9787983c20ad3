"""Who may send a request to which server: named leases on server slots, least load first, waiters in FIFO order.

Pure state machine behind `GlobalLoadBalancer`. Every call returns the leases it granted; nothing here waits.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from .recent import RecentDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    lease_id: str
    server_id: str


@dataclass(slots=True)
class _Server:
    inflight: int = 0
    last_used: int = 0
    leases: set[str] = field(default_factory=set)


class LeaseTable:
    """At most `max_inflight_per_server` leases on a server, and at most `pool_size` in all.

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
        self._servers: dict[str, _Server] = {}
        self._by_load: list[tuple[int, int, str]] = []  # heap of (inflight, last_used, server_id); old entries linger
        self._clock = 0
        self._held: dict[str, str] = {}  # lease_id -> server_id
        self._waiting: OrderedDict[str, str | None] = OrderedDict()  # lease_id -> sticky key
        self._overtaken = RecentDict[str, None](remembered)
        self._sticky = RecentDict[str, str](remembered)

    @property
    def capacity(self) -> int:
        slots = self._max_per_server * len(self._servers)
        return slots if self._pool_size is None else min(slots, self._pool_size)

    @property
    def inflight(self) -> dict[str, int]:
        return {server_id: server.inflight for server_id, server in self._servers.items()}

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
            if server_id not in self._servers:
                self._servers[server_id] = _Server()
                self._push(server_id)
        return self._grant_waiting()

    def remove_servers(self, server_ids: Iterable[str]) -> list[Grant]:
        """Forget servers and the leases on them: their holders will fail, and their later release is void."""
        for server_id in server_ids:
            server = self._servers.pop(server_id, None)
            if server is not None:
                for lease_id in server.leases:
                    del self._held[lease_id]
        return self._grant_waiting()

    def request(self, lease_id: str, sticky_key: str | None = None) -> list[Grant]:
        """Ask for a slot. Prefers the server that `sticky_key` used last, as long as it has room."""
        assert lease_id not in self._held and lease_id not in self._waiting, f"lease {lease_id} requested twice"
        if lease_id in self._overtaken:
            del self._overtaken[lease_id]
            return []
        self._waiting[lease_id] = sticky_key
        return self._grant_waiting()

    def release(self, lease_id: str) -> list[Grant]:
        server_id = self._held.pop(lease_id, None)
        if server_id is not None:
            server = self._servers[server_id]
            server.inflight -= 1
            server.leases.discard(lease_id)
            self._push(server_id)
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
        while self._waiting and len(self._held) < self.capacity:
            lease_id, sticky_key = next(iter(self._waiting.items()))
            server_id = self._choose(sticky_key)
            if server_id is None:
                break
            del self._waiting[lease_id]
            self._occupy(server_id, lease_id, sticky_key)
            grants.append(Grant(lease_id=lease_id, server_id=server_id))
        return grants

    def _choose(self, sticky_key: str | None) -> str | None:
        last = None if sticky_key is None else self._sticky.get(sticky_key)
        if last in self._servers and self._servers[last].inflight < self._max_per_server:
            return last
        while self._by_load:
            inflight, last_used, server_id = self._by_load[0]
            server = self._servers.get(server_id)
            if server is not None and (server.inflight, server.last_used) == (inflight, last_used):
                return server_id if inflight < self._max_per_server else None
            heapq.heappop(self._by_load)
        return None

    def _occupy(self, server_id: str, lease_id: str, sticky_key: str | None) -> None:
        self._clock += 1
        server = self._servers[server_id]
        server.inflight += 1
        server.last_used = self._clock
        server.leases.add(lease_id)
        self._held[lease_id] = server_id
        self._push(server_id)
        if sticky_key is not None:
            self._sticky[sticky_key] = server_id

    def _push(self, server_id: str) -> None:
        server = self._servers[server_id]
        heapq.heappush(self._by_load, (server.inflight, server.last_used, server_id))
        if len(self._by_load) > 64 + 4 * len(self._servers):
            self._by_load = [(s.inflight, s.last_used, key) for key, s in self._servers.items()]
            heapq.heapify(self._by_load)
