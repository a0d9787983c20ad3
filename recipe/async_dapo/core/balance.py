"""The load balancer's decisions: which server takes a request, and how many requests each may have."""

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from .concurrency import ConcurrencyController, EngineLoad
from .leases import Grant, LeaseTable

REMEMBERED = 2048  # responses
NEW_BEFORE_SORTED = 64  # responses that may be missing from what is asked


class ResponseLengths:
    """The lengths of responses that ended lately, which say how much longer one will get.

    Args:
        limit_tok: responses end there at the latest [tokens].
    """

    def __init__(self, limit_tok: int) -> None:
        self._limit_tok = limit_tok
        self._recent: deque[int] = deque(maxlen=REMEMBERED)
        self._unsorted = 0
        self._sorted: list[int] = []
        self._sums: list[int] = [0]  # of the first i lengths

    def add(self, length_tok: int) -> None:
        self._recent.append(length_tok)
        self._unsorted += 1

    def remainder_tok(self, generated_tok: int) -> float:
        """Expected tokens until the end of a response that has so many already; half of what is allowed before anything
        of that length has been seen."""
        if self._unsorted >= min(NEW_BEFORE_SORTED, len(self._recent)) > 0:
            self._sorted, self._unsorted = sorted(self._recent), 0
            self._sums = [0, *accumulate(self._sorted)]
        first = bisect_right(self._sorted, generated_tok)
        longer = len(self._sorted) - first
        if not longer:
            return max(0, self._limit_tok - generated_tok) / 2
        return (self._sums[-1] - self._sums[first]) / longer - generated_tok


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A lease that is given back, with what was learned while it was held."""

    lease_id: str
    server_id: str = ""
    response_tok: int | None = None  # of the whole response, if it has ended
    load: EngineLoad | None = None  # what the server said with its answer


class Balance:
    """Leases placed by expected KV cache, on servers sized by what their engines report.

    Args:
        max_per_server: requests in flight on a server, whatever the capacity of its engine [count, >= 1].
        pool_size: requests in flight on all servers together [count, >= 1]; None = no limit but the servers' own.
            Groups start only while there is capacity; trajectories that come back from calls of tools wait for it here.
        sizes_itself: whether servers get the capacity of their engines; else all have the maximum.
        first_context_tok: expected of a request before any has been seen [tokens].
        limit_tok: responses end there at the latest [tokens].
        keeps_siblings: whether a group's requests go to one server where its load allows: its engine drafts from them.
    """

    def __init__(
        self,
        *,
        max_per_server: int,
        pool_size: int | None,
        sizes_itself: bool,
        first_context_tok: int,
        limit_tok: int,
        keeps_siblings: bool = False,
    ) -> None:
        self.leases = LeaseTable(max_inflight_per_server=max_per_server, pool_size=pool_size)
        self.controller = ConcurrencyController(first_context_tok=first_context_tok, most_per_server=max_per_server)
        self._sizes_itself = sizes_itself
        self._keeps_siblings = keeps_siblings
        self._lengths = ResponseLengths(limit_tok)
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
        if self._keeps_siblings:  # under new weights no prefix is cached: groups come together again
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

    def request(
        self,
        lease_id: str,
        sticky_key: str | None,
        *,
        group: str | None = None,
        prompt_tok: int = 0,
        generated_tok: int = 0,
    ) -> list[Grant]:
        """Ask for a server; see `LeaseTable.request`.

        Args:
            group: whose answer is generated.
            prompt_tok: of the request, without what a response has already [tokens]; 0 = unknown: requests count alike.
        """
        group = group if self._keeps_siblings else None
        if not prompt_tok:
            return self.leases.request(lease_id, sticky_key, group=group)
        context_tok = prompt_tok + generated_tok
        kv_tok = context_tok + self._lengths.remainder_tok(generated_tok)
        return self.leases.request(lease_id, sticky_key, prefix_tok=context_tok, kv_tok=kv_tok, group=group)

    def release(self, returned: Returned) -> list[Grant]:
        """Give a lease back, and learn from what came with it."""
        grants: list[Grant] = []
        if returned.response_tok is not None:
            self._lengths.add(returned.response_tok)
        if returned.load is not None and self._sizes_itself and self._is_open:
            grants = self._steer(returned.server_id, returned.load)
        return grants + self.leases.release(returned.lease_id)

    def _steer(self, server_id: str, load: EngineLoad) -> list[Grant]:
        if not self.controller.steer(server_id, load, inflight=self.leases.inflight_on(server_id)):
            return []
        self.steered += 1
        return self.leases.set_capacities({server_id: self.controller.capacity_of(server_id)}, {})

    def figures(self) -> dict[str, float]:
        return self.controller.figures() | {"capacity": self.capacity, "steered": self.steered}

    def _apply(self) -> list[Grant]:
        if not self._sizes_itself:
            return []
        return self.leases.set_capacities(self.controller.capacities, self.controller.weights)
