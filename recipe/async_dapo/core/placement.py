"""Which server takes the next request: the one whose KV cache will be least full for its size."""

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True)
class Server:
    """What is on a server, in expected tokens of KV cache."""

    places: int  # requests it may have in flight
    weight: float = 1.0  # how much it should hold, compared with the others
    kv_tok: float = 0.0
    last_used: int = 0
    peak: int = 0  # most requests in flight at once
    leases: dict[str, float] = field(default_factory=dict)  # lease id -> expected KV use [tokens]

    @property
    def inflight(self) -> int:
        return len(self.leases)

    @property
    def load(self) -> float:
        return self.kv_tok / self.weight

    @property
    def has_place(self) -> bool:
        return len(self.leases) < self.places


class Placement:
    """The servers in order of load, in logarithmic time.

    A request goes to the least loaded server with a place; back to the one that has its prefix in the cache while that
    one is fuller by no more than the prefix is long: to compute it again costs about as much as to share the memory
    bandwidth with as many tokens of others.
    """

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self._by_load: list[tuple[float, int, str]] = []  # heap; old entries linger
        self._clock = 0

    def add(self, server_id: str, server: Server) -> None:
        self.servers[server_id] = server
        self.note(server_id)

    def remove(self, server_id: str) -> Server | None:
        return self.servers.pop(server_id, None)

    def choose(self, last_id: str | None, prefix_tok: float) -> str | None:
        """The server for a request; None if all are full.

        Args:
            last_id: where its prefix may be cached.
        """
        best_id = self._least_loaded()
        last = self.servers.get(last_id) if last_id is not None else None
        if best_id is None or last is None or not last.has_place:
            return best_id
        fuller_tok = (last.load - self.servers[best_id].load) * last.weight
        return last_id if fuller_tok <= max(prefix_tok, 1.0) else best_id

    def occupy(self, server_id: str, lease_id: str, kv_tok: float) -> None:
        self._clock += 1
        server = self.servers[server_id]
        server.leases[lease_id] = kv_tok
        server.kv_tok += kv_tok
        server.last_used = self._clock
        server.peak = max(server.peak, server.inflight)
        self.note(server_id)

    def vacate(self, server_id: str, lease_id: str) -> None:
        server = self.servers[server_id]
        server.kv_tok -= server.leases.pop(lease_id)
        if not server.leases:
            server.kv_tok = 0.0  # no rounding error outlives its requests
        self.note(server_id)

    def note(self, server_id: str) -> None:
        """Its load, weight or number of places has changed."""
        server = self.servers[server_id]
        if server.has_place:
            heapq.heappush(self._by_load, (server.load, server.last_used, server_id))
        if len(self._by_load) > 64 + 4 * len(self.servers):
            self._by_load = [(s.load, s.last_used, key) for key, s in self.servers.items() if s.has_place]
            heapq.heapify(self._by_load)

    def _least_loaded(self) -> str | None:
        while self._by_load:
            load, last_used, server_id = self._by_load[0]
            server = self.servers.get(server_id)
            if server is not None and server.has_place and (server.load, server.last_used) == (load, last_used):
                return server_id
            heapq.heappop(self._by_load)
        return None
