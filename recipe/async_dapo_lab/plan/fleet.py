"""The servers of a run, their engines in virtual time, and the leases on them."""

import gc
import heapq
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from math import inf
from typing import Any

from ...async_dapo.config.derived import server_calls
from ...async_dapo.config.options import AsyncDAPOConfig
from ...async_dapo.config.router import balance_of
from ...async_dapo.core.concurrency import EngineLoad
from ...async_dapo.core.leases import Grant, Returned
from .engine import Engine, EngineCounters, Request
from .scenario import Scenario


class VirtualClock:
    """Virtual time: runs callbacks in order of time, those of the same time in the order they were planned."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time_s: float, callback: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._planned, (max(time_s, self.now_s), self._count, callback))

    def step(self) -> bool:
        """Jump to the next event and run it. False if there is none."""
        if not self._planned:
            return False
        self.now_s, _, callback = heapq.heappop(self._planned)
        callback()
        return True


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A round makes many objects and hardly any garbage: looking for it would take a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Fleet:
    """What the load balancer and the servers are to the recipe: leases from the production `LeaseTable`, engines.

    Engines live on over rounds; the clock starts anew with each round.
    """

    def __init__(self, scenario: Scenario, options: AsyncDAPOConfig) -> None:
        cost = scenario.step_cost(drafts=options.drafts is not None, host_kv=options.host_kv_gib is not None)
        most = scenario.max_num_seqs
        balance = balance_of(options, most_per_server=server_calls(most) - 1)
        self.engines = {f"server-{i}": Engine(cost, max_num_seqs=most) for i in range(scenario.num_servers)}
        self.balance, self.leases = balance, balance.leases
        self.leases.add_servers(self.engines)
        self.inflight_max = 0
        self.lease_s = 0.0  # sum over leases of the time they were held
        self._noted_s = 0.0
        self._lease_numbers = count()
        self._unsent: dict[str, Request] = {}  # lease id -> request that waits for a server
        self._wake_s: dict[str, float] = {}

    def open(self, clock: VirtualClock, on_end: Callable[[Request], None]) -> None:
        """Let the engines run on this clock; `on_end` is told every request that has got its tokens."""
        self._clock = clock
        self._on_end = on_end
        self._wake_s = {}
        self.inflight_max, self.lease_s, self._noted_s = self.leases.total_inflight, 0.0, clock.now_s
        for server_id, engine in self.engines.items():
            engine.resume(clock.now_s)
            self._plan(server_id)
        self._deliver(self.balance.open(self.loads))

    @property
    def loads(self) -> dict[str, EngineLoad]:
        """What the servers say of themselves."""
        return {server_id: engine.load for server_id, engine in self.engines.items()}

    def new_lease_id(self) -> str:
        return f"lease-{next(self._lease_numbers)}"

    def send(self, lease_id: str, request: Request) -> None:
        """Lease a server for a request, and send it as soon as there is one."""
        self._unsent[lease_id] = request
        self._note_inflight()
        self._deliver(self.leases.request(lease_id))

    def release(self, lease_id: str) -> None:
        """Give a lease back, with what its server says of itself, as clients do."""
        self._note_inflight()
        server_id = self.leases.server_of(lease_id) or ""
        load = self.engines[server_id].load if server_id else None
        returned = Returned(lease_id=lease_id, server_id=server_id, load=load)
        self._deliver(self.balance.release(returned))

    def stop(self) -> list[Request]:
        """Void waiting requests and stop all engines.

        Returns:
            All requests that were out, those that never reached a server included.
        """
        self._note_inflight()
        self.leases.withdraw_queued()
        out = list(self._unsent.values())
        self._unsent.clear()
        for engine in self.engines.values():
            out += engine.abort(self._clock.now_s)
        self.balance.close(self.loads)
        return out

    def counters(self) -> EngineCounters:
        """Of all engines together, since the run began."""
        return sum((engine.counters for engine in self.engines.values()), start=EngineCounters())

    def in_measure(self, before: EngineCounters, *, rollout_s: float) -> dict[str, Any]:
        """What the `StepMeasure` of a step takes of it.

        Args:
            before: the counters when the step began.
        """
        return (self.counters() - before).in_measure() | {
            "rollout_s": rollout_s,
            "inflight_max": self.inflight_max,
            "inflight_max_s": self.inflight_max * rollout_s,
            "lease_s": self.lease_s,
            "num_servers": len(self.engines),
        }

    def _deliver(self, grants: Iterable[Grant]) -> None:
        for grant in grants:
            self.engines[grant.server_id].submit(self._unsent.pop(grant.lease_id), self._clock.now_s)
            self._plan(grant.server_id)
        self.inflight_max = max(self.inflight_max, self.leases.total_inflight)

    def _plan(self, server_id: str) -> None:
        """Be woken when the engine's batch changes next; earlier plans go stale by themselves."""
        time_s = self.engines[server_id].next_boundary_s
        if time_s < inf and self._wake_s.get(server_id) != time_s:
            self._wake_s[server_id] = time_s
            self._clock.at(time_s, partial(self._wake, server_id, time_s))

    def _wake(self, server_id: str, time_s: float) -> None:
        engine = self.engines[server_id]
        if self._wake_s.get(server_id) != time_s or engine.next_boundary_s != time_s:
            return
        del self._wake_s[server_id]
        finished = engine.run_boundary()
        self._plan(server_id)
        for request in finished:
            self._on_end(request)

    def _note_inflight(self) -> None:
        now_s = self._clock.now_s
        self.lease_s += self.leases.total_inflight * (now_s - self._noted_s)
        self._noted_s = now_s
