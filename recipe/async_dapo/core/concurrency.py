"""How many requests each server may have in flight: its KV cache full, and hardly anything preempted.

    capacity of a server = min(sequences that it runs at once, share * KV room / context)

`context` is what a request takes of the KV cache on average [tokens]: a guess for the first round, from then on what
rounds have measured. `share` of the room is filled: less by a tenth after a round that preempted too much, more by 3 %
of the room after one that was full and did not. Within a round a server that preempts too much loses capacity, and gets
it back one by one. A slower server gets no less: it ends fewer requests, so fewer come to it.

Pure state machine behind the load balancer; fed with what engines say of themselves, on answers that are sent anyway.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from .summed import Summed

FIRST_SHARE, LEAST_SHARE, MOST_SHARE = 0.85, 0.25, 0.9
CUT, GROWTH = 0.9, 0.03
# Tokens computed again after preemptions over tokens generated: up to the first, there is more room; beyond the second,
# too little is left. To compute one takes a fraction of the time of generating it: some cost less than empty room.
HARDLY_ANY, TOO_MANY = 0.15, 0.35
BURST = 0.2  # of the requests in flight: so many preemptions alone are no reason to act in mid-round


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad(Summed):
    """What a server says of its engine since it was last opened, all data-parallel ranks together."""

    LATEST: ClassVar[tuple[str, ...]] = ("kv_room_tok", "max_num_seqs")
    LARGEST = ("kv_peak",)

    kv_room_tok: int
    max_num_seqs: int  # requests that run at once
    kv_peak: float = 0.0  # largest share of the room in use [0-1], of the fullest rank
    kv_tok_s: float = 0.0  # tokens in the KV cache, integrated over time
    preemptions: int = 0
    generated_tok: int = 0
    drafted_tok: int = 0  # that were verified
    accepted_tok: int = 0  # of these, generated so
    request_s: float = 0.0  # time, summed over running requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyState:
    """What was learned, as a checkpoint keeps it."""

    context_tok: float  # of a request
    is_measured: bool  # else that is a guess
    share: float  # of the KV room that is filled [0-1]


@dataclass(slots=True)
class _Server:
    kv_room_tok: int
    max_num_seqs: int
    braked_to: int | None = None  # for the rest of the round
    seen: EngineLoad | None = None  # when it was braked last in this round
    calm_releases: int = 0  # since it was braked, or given one back


class ConcurrencyController:
    """The capacity of all servers: learned from rounds, and steered within one.

    Args:
        first_context_tok: expected for a request before anything has been measured [tokens, >= 1].
        most_per_server: whatever its engine has room for [requests, >= 1].

    Attributes:
        learned: from all rounds so far.
        reason: of the last decision, in words.
    """

    def __init__(self, *, first_context_tok: int, most_per_server: int) -> None:
        self.learned = ConcurrencyState(context_tok=float(first_context_tok), is_measured=False, share=FIRST_SHARE)
        self.reason = "first guess"
        self._most = most_per_server
        self._servers: dict[str, _Server] = {}

    @property
    def total(self) -> int:
        return sum(self.capacities.values())

    @property
    def capacities(self) -> dict[str, int]:
        """Server -> requests it may have in flight [count, >= 1]."""
        return {server_id: self.capacity_of(server_id) for server_id in self._servers}

    def capacity_of(self, server_id: str) -> int:
        server = self._servers[server_id]
        by_room = self.learned.share * server.kv_room_tok / self.learned.context_tok
        capacity = max(1, min(self._most, int(min(server.max_num_seqs, by_room))))
        return capacity if server.braked_to is None else min(capacity, server.braked_to)

    def open(self, loads: Mapping[str, EngineLoad]) -> None:
        """These servers take part in the round that begins, and no others."""
        self._servers = {key: _Server(load.kv_room_tok, load.max_num_seqs) for key, load in loads.items()}

    def knows(self, server_id: str) -> bool:
        """Whether it takes part in the round."""
        return server_id in self._servers

    def join(self, server_id: str, load: EngineLoad) -> None:
        self._servers[server_id] = _Server(load.kv_room_tok, load.max_num_seqs)

    def leave(self, server_id: str) -> None:
        self._servers.pop(server_id, None)

    def steer(self, server_id: str, load: EngineLoad, *, inflight: int) -> bool:
        """Take capacity from a server that preempts too much, and give one request of it back for each tenth of its
        requests that have ended since; called as a request ends. True if its capacity has changed.
        """
        server = self._servers.get(server_id)
        if server is None or (server.braked_to is not None and inflight > server.braked_to):
            return False  # it has not yet come down to its capacity
        seen = server.seen or EngineLoad(kv_room_tok=0, max_num_seqs=0)
        preemptions = load.preemptions - seen.preemptions - BURST * inflight
        if self.learned.context_tok * preemptions > TOO_MANY * (load.generated_tok - seen.generated_tok):
            server.braked_to, server.seen, server.calm_releases = max(1, int(CUT * inflight)), load, 0
            return True
        if server.braked_to is None:
            return False
        server.calm_releases += 1
        if server.calm_releases < (1 - CUT) * inflight:
            return False
        server.braked_to, server.calm_releases = server.braked_to + 1, 0
        return True

    def end_round(self, loads: Mapping[str, EngineLoad], inflight_max: Mapping[str, int]) -> None:
        """Learn from a round.

        Args:
            loads: as of its end, of the servers that are still there.
            inflight_max: server -> most requests it had in flight at once [count].
        """
        used = {key: load for key, load in loads.items() if key in self._servers and inflight_max.get(key, 0) > 0}
        if not used:
            return
        inflight = sum(inflight_max[key] for key in used)
        self._measure_context(used)
        recomputed = self.learned.context_tok * sum(load.preemptions for load in used.values())
        generated = sum(load.generated_tok for load in used.values())
        share = self.learned.share
        if recomputed > TOO_MANY * generated:
            share, self.reason = max(LEAST_SHARE, CUT * share), "preempted: less of the room"
        elif recomputed > HARDLY_ANY * generated:
            self.reason = "as full as it should be"
        elif inflight < 0.9 * self.total:
            self.reason = "capacity to spare"
        else:
            share, self.reason = min(MOST_SHARE, share + GROWTH), "full, none preempted: more of the room"
        self.learned = replace(self.learned, share=share)
        for server in self._servers.values():
            server.braked_to, server.seen = None, None

    def restore(self, learned: ConcurrencyState) -> None:
        self.learned, self.reason = learned, "as in the checkpoint"

    def _measure_context(self, loads: Mapping[str, EngineLoad]) -> None:
        """Up at once, down by halves: too small a context preempts, too large a one leaves some room empty."""
        context_tok = _mean_context_tok(loads)
        if context_tok is None:
            return
        if self.learned.is_measured and context_tok < self.learned.context_tok:
            context_tok = (self.learned.context_tok + context_tok) / 2
        self.learned = replace(self.learned, context_tok=context_tok, is_measured=True)


def _mean_context_tok(loads: Mapping[str, EngineLoad]) -> float | None:
    """What a running request took of the KV cache; None if none ran."""
    request_s = sum(load.request_s for load in loads.values())
    return max(1.0, sum(load.kv_tok_s for load in loads.values()) / request_s) if request_s else None
