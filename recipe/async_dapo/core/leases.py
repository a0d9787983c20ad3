"""The load balancer's decisions: which request goes to which server, and how many requests each may have.

Pure state machine behind `GlobalLoadBalancer`: `LeaseTable` grants named leases, to waiters in FIFO order,
`ServersByLoad` chooses the servers, and `Balance` sizes them by what their engines report (`concurrency.py`). Every
call returns the leases that it granted; nothing here waits.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import TypeVar

from .concurrency import ConcurrencyController, EngineLoad

K = TypeVar("K")
V = TypeVar("V")

NEAR_SHARE = 1 / 8  # by which a server may be fuller than others, to keep requests with what it has cached

# Of the coordinator, the load balancer and agent loop workers: every slot may wait for a group, every request for a
# server, every trajectory for a call of another worker, and no release and no round may queue behind them.
MAX_PENDING_CALLS = 100_000


@dataclass(slots=True)
class Server:
    """What is on a server."""

    capacity: int  # requests it may have in flight
    last_used: int = 0
    peak: int = 0  # most requests in flight at once
    is_closed: bool = False  # takes no further requests
    leases: set[str] = field(default_factory=set)

    @property
    def inflight(self) -> int:
        return len(self.leases)

    @property
    def load(self) -> float:
        """Share of its capacity in use; above 1 where that has been cut."""
        return len(self.leases) / self.capacity

    @property
    def has_capacity(self) -> bool:
        return len(self.leases) < self.capacity and not self.is_closed


class ServersByLoad:
    """The servers in order of load, in logarithmic time.

    A request goes to the least loaded server that has capacity. Servers are sized by their KV caches, so to count
    requests is enough. The server that may cache the request's prefix is preferred if it is fuller by at most one
    request, or an eighth of those that it has. Otherwise the server of the group's last request, whose engine can draft
    from the answers of the group, is preferred if it is fuller by at most an eighth of its capacity.
    """

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self._heap: list[tuple[float, int, str]] = []  # old entries linger
        self._clock = 0

    def add(self, server_id: str, server: Server) -> None:
        self.servers[server_id] = server
        self.note(server_id)

    def choose(self, last_id: str | None, group_last_id: str | None, pinned_id: str | None = None) -> str | None:
        """The server for a request; None if all are full.

        Args:
            last_id: where its prefix may be cached.
            group_last_id: where the last request of its group went.
            pinned_id: where it goes if there is any capacity left.
        """
        best_id = self._least_loaded()
        if best_id is None:
            return None
        if pinned_id is not None and (pinned := self.servers.get(pinned_id)) is not None and pinned.has_capacity:
            return pinned_id
        last, group_last = (self.servers.get(one) if one is not None else None for one in (last_id, group_last_id))
        if last is not None and self._is_near(last, best_id, max(1.0, NEAR_SHARE * last.inflight)):
            return last_id
        is_near = group_last is not None and self._is_near(group_last, best_id, NEAR_SHARE * group_last.capacity)
        return group_last_id if is_near else best_id

    def _is_near(self, server: Server, best_id: str, requests: float) -> bool:
        """Whether a server has capacity, and is fuller than the best one by no more than so many requests."""
        return server.has_capacity and (server.load - self.servers[best_id].load) * server.capacity <= requests

    def occupy(self, server_id: str, lease_id: str) -> None:
        self._clock += 1
        server = self.servers[server_id]
        server.leases.add(lease_id)
        server.last_used = self._clock
        server.peak = max(server.peak, server.inflight)
        self.note(server_id)

    def vacate(self, server_id: str, lease_id: str) -> None:
        self.servers[server_id].leases.remove(lease_id)
        self.note(server_id)

    def note(self, server_id: str) -> None:
        """Its load or capacity has changed."""
        server = self.servers[server_id]
        if server.has_capacity:
            heapq.heappush(self._heap, (server.load, server.last_used, server_id))
        if len(self._heap) > 64 + 4 * len(self.servers):
            self._heap = [(s.load, s.last_used, key) for key, s in self.servers.items() if s.has_capacity]
            heapq.heapify(self._heap)

    def _least_loaded(self) -> str | None:
        while self._heap:
            load, last_used, server_id = self._heap[0]
            server = self.servers.get(server_id)
            if server is not None and server.has_capacity and (server.load, server.last_used) == (load, last_used):
                return server_id
            heapq.heappop(self._heap)
        return None


class RecentDict(OrderedDict[K, V]):
    """A dict for keys that are not removed: it forgets its oldest entry when it would hold more than `limit` [count];
    setting a key makes it the newest.
    """

    def __init__(self, limit: int = 65_536) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._limit:
            self.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    lease_id: str
    server_id: str


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


class LeaseTable:
    """At most `max_inflight_per_server` leases on a server, or what `set_capacities` says; at most `pool_size` in all.

    A lease is requested once and released once, in any order: a release that overtakes its request voids it. Releasing
    twice, or a lease that nobody holds, changes nothing.

    Args:
        max_inflight_per_server: requests in flight on a server [count, >= 1].
        pool_size: those on all servers together [count, >= 1]; None = no limit but the servers' own.
        gathers_groups: whether a group's requests go to one server, where its load allows.
        remembered: how many overtaken releases and sticky keys are kept [count].
    """

    def __init__(
        self,
        *,
        max_inflight_per_server: int,
        pool_size: int | None = None,
        gathers_groups: bool = False,
        remembered: int = 65_536,
    ) -> None:
        self._max_per_server = max_inflight_per_server
        self._pool_size = pool_size
        self._gathers_groups = gathers_groups
        self._by_load = ServersByLoad()
        self._held: dict[str, str] = {}  # lease_id -> server_id
        self._queued: OrderedDict[str, tuple[str | None, str | None]] = OrderedDict()  # sticky key and group
        self._overtaken = RecentDict[str, None](remembered)
        self._sticky = RecentDict[str | None, str](remembered)  # key -> server
        self._pinned: dict[str | None, str] = {}  # sticky key -> server, for its next request
        self._group_last = RecentDict[str | None, str](remembered)  # group -> server

    @property
    def capacity(self) -> int:
        capacity = sum(server.capacity for server in self._by_load.servers.values())
        return capacity if self._pool_size is None else min(capacity, self._pool_size)

    @property
    def inflight(self) -> dict[str, int]:
        return {server_id: server.inflight for server_id, server in self._by_load.servers.items()}

    def inflight_on(self, server_id: str) -> int:
        server = self._by_load.servers.get(server_id)
        return 0 if server is None else server.inflight

    @property
    def peaks(self) -> dict[str, int]:
        """Server -> most requests in flight at once, since they were forgotten."""
        return {server_id: server.peak for server_id, server in self._by_load.servers.items()}

    def forget_peaks(self) -> None:
        for server in self._by_load.servers.values():
            server.peak = server.inflight

    @property
    def total_inflight(self) -> int:
        return len(self._held)

    @property
    def held_lease_ids(self) -> Set[str]:
        return self._held.keys()

    @property
    def num_queued(self) -> int:
        return len(self._queued)

    def server_of(self, lease_id: str) -> str | None:
        """The server a lease is held on."""
        return self._held.get(lease_id)

    def is_queued(self, lease_id: str) -> bool:
        return lease_id in self._queued

    def add_servers(self, server_ids: Iterable[str], *, is_closed: bool = False) -> list[Grant]:
        for server_id in server_ids:
            if server_id not in self._by_load.servers:
                self._by_load.add(server_id, Server(capacity=self._max_per_server, is_closed=is_closed))
        return self._grant_queued()

    def remove_servers(self, server_ids: Iterable[str]) -> list[Grant]:
        """Forget servers and the leases on them: their holders will fail, and their later release is void."""
        for server_id in server_ids:
            server = self._by_load.servers.pop(server_id, None)
            for lease_id in server.leases if server is not None else ():
                del self._held[lease_id]
        return self._grant_queued()

    def close(self, server_id: str) -> None:
        """It gets no further request until it is reopened; leases on it stay."""
        self._by_load.servers[server_id].is_closed = True

    def reopen(self, server_id: str) -> list[Grant]:
        self._by_load.servers[server_id].is_closed = False
        self._by_load.note(server_id)
        return self._grant_queued()

    def set_capacities(self, capacities: Mapping[str, int]) -> list[Grant]:
        """Size servers anew; a lease that is out stays, on a server with less capacity too.

        Args:
            capacities: server -> requests in flight, cut at `max_inflight_per_server` [count].
        """
        for server_id, count in capacities.items():
            if (server := self._by_load.servers.get(server_id)) is not None:
                server.capacity = max(1, min(count, self._max_per_server))
                self._by_load.note(server_id)
        return self._grant_queued()

    def request(self, lease_id: str, sticky_key: str | None = None, *, group: str | None = None) -> list[Grant]:
        """Ask for a server.

        Args:
            sticky_key: prefers the server that the key used last, while that is not too full.
            group: whose answer is generated; prefers the server that it used last, if groups are gathered.
        """
        assert lease_id not in self._held and lease_id not in self._queued, f"lease {lease_id} requested twice"
        if lease_id in self._overtaken:
            del self._overtaken[lease_id]
            return []
        self._queued[lease_id] = sticky_key, group
        return self._grant_queued()

    def release(self, lease_id: str) -> list[Grant]:
        server_id = self._held.pop(lease_id, None)
        if server_id is not None:
            self._by_load.vacate(server_id, lease_id)
        elif lease_id in self._queued:
            del self._queued[lease_id]
        else:
            self._overtaken[lease_id] = None
        return self._grant_queued()

    def withdraw_queued(self) -> list[str]:
        """Void every queued request. Returns their lease ids in order."""
        lease_ids = list(self._queued)
        self._queued.clear()
        return lease_ids

    def forget_sticky_keys(self) -> int:
        count = len(self._sticky)
        self._sticky.clear()
        return count

    def pin_last_servers(self) -> None:
        """The next request of each sticky key goes where the last one was, if that server has any capacity left."""
        self._pinned = dict(self._sticky)

    def _grant_queued(self) -> list[Grant]:
        grants = []
        while self._queued and (self._pool_size is None or len(self._held) < self._pool_size):
            lease_id, (key, group) = next(iter(self._queued.items()))
            last_id, group_last_id = self._sticky.get(key), self._group_last.get(group)
            server_id = self._by_load.choose(last_id, group_last_id, self._pinned.get(key))
            if server_id is None:
                break
            del self._queued[lease_id]
            self._by_load.occupy(server_id, lease_id)
            self._held[lease_id] = server_id
            if key is not None:
                self._sticky[key] = server_id
                self._pinned.pop(key, None)
            if group is not None and self._gathers_groups:
                self._group_last[group] = server_id
            grants.append(Grant(lease_id=lease_id, server_id=server_id))
        return grants


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
        self.leases = LeaseTable(
            max_inflight_per_server=max_per_server, pool_size=pool_size, gathers_groups=gathers_groups
        )
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
        """A server says in mid-round, for the first time, what it is; its requests are counted already."""
        if load is not None:
            self.controller.join(server_id, load)
        return self._apply()

    def leave(self, server_id: str) -> list[Grant]:
        self.controller.leave(server_id)
        return self.leases.remove_servers([server_id])

    def close(self, loads: Mapping[str, EngineLoad]) -> None:
        """A round has ended; what is learned from it counts from the next one on."""
        self._is_open = False
        self.controller.end_round(loads, self.leases.peaks)

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

    def _apply(self) -> list[Grant]:
        if not self._sizes_itself:
            return []
        return self.leases.set_capacities(self.controller.capacities)
