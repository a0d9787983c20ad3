"""verl's `RequestLoadBalancer` protocol on named leases, for verl's own clients and users' agent loops."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from ray.actor import ActorHandle

from ..core.leases import LeaseTable


class VerlLoadBalancerProtocol:
    """What verl's balancer does, and for whom: who names no lease has one named for it, so that a request id may be
    leased many times at once, and gives back any of its leases on a server.

    Different from verl's `GlobalRequestLoadBalancer`:

    - `acquire_server` waits while all servers are full: capacity is bounded here. Waiters are served in order.
    - It raises `RuntimeError` while generation is stopped, also under a waiter: verl's balancer knows no stop.
    - A request id's last server is preferred only while it has room: waiting for it would leave others idle.
    - A caller that names its lease (`lease_id`) has None instead of the error, may give it back twice, or before it has
      it, and so loses no slot when it is cancelled: one without a name does, in verl as here.
    - `get_status` tells more: waiters, capacity, whether generation is on.
    - There is no `full_determinism`: what a stop interrupts depends on timing.
    """

    _table: LeaseTable
    _handles: dict[str, ActorHandle]

    def __init__(self) -> None:
        self._unnamed: dict[str, dict[str, str]] = {}  # server id -> lease id -> request id

    async def lease(self, request_id: str, lease_id: str) -> str | None:
        raise NotImplementedError

    async def release(self, lease_ids: Sequence[str]) -> None:
        raise NotImplementedError

    async def acquire_server(self, request_id: str, lease_id: str | None = None) -> tuple[str, ActorHandle] | None:
        """Lease a slot.

        Raises:
            RuntimeError: if there is no server, or generation is stopped and the lease has no name.
        """
        name = lease_id or uuid4().hex
        server_id = await self.lease(request_id, name)
        if server_id is None or server_id not in self._handles:
            if lease_id is None:
                raise RuntimeError(f"request {request_id} has no server: generation is stopped, or the server is gone")
            return None
        if lease_id is None:
            self._unnamed.setdefault(server_id, {})[name] = request_id
        return server_id, self._handles[server_id]

    async def release_server(self, server_id: str, request_id: str | None = None, lease_id: str | None = None) -> None:
        """Give one lease back; of those without a name the request's first, or the server's first. None is harmless."""
        if lease_id is None:
            unnamed = self._unnamed.get(server_id, {})
            lease_id = next((name for name, owner in unnamed.items() if request_id in (None, owner)), None)
            if lease_id is None:
                return
            del unnamed[lease_id]
        await self.release([lease_id])

    async def require_acquire_fields(self) -> list[str]:
        return ["lease_id"]

    async def require_release_fields(self) -> list[str]:
        return ["request_id", "lease_id"]

    async def get_all_servers(self) -> list[str]:
        return list(self._handles)

    async def get_inflight_count(self, server_id: str) -> int:
        return self._table.inflight.get(server_id, 0)

    async def get_total_inflight(self) -> int:
        return self._table.total_inflight

    async def clear_sticky_cache(self) -> dict[str, Any]:
        return {"cleared_entries": self._table.forget_sticky_keys(), "server_loads": self._table.inflight}
