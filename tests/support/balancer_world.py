"""A load balancer as a plain class, and what its tests ask of it."""

import asyncio
from collections.abc import Iterable
from typing import Any

from recipe.async_dapo.core.balance import Requested, Returned
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancer

from .fakes import FakeHandle, ScriptedServer
from .router import router_options
from .simulation import settle


def handles(names: Iterable[str], **options: Any) -> dict[str, FakeHandle]:
    return {name: FakeHandle(ScriptedServer(), **options) for name in names}


def balancer(names: Iterable[str] = "ab", *, capacity: int = 1, **options: Any) -> GlobalLoadBalancer:
    return GlobalLoadBalancer(handles(names), router_options(capacity, **options))


async def release(lb: GlobalLoadBalancer, *lease_ids: str) -> None:
    await lb.exchange([], [Returned(lease_id=lease_id) for lease_id in lease_ids])


async def lease(lb: GlobalLoadBalancer, lease_id: str, *, request_id: str = "request", group: str | None = None) -> Any:
    """A server, waiting for one if need be."""
    decided = await lb.exchange([Requested(lease_id=lease_id, request_id=request_id, group=group)], [])
    return decided[lease_id] if lease_id in decided else await lb.granted(lease_id)


def acquire(lb: GlobalLoadBalancer, lease_id: str) -> asyncio.Task[Any]:
    return asyncio.create_task(lease(lb, lease_id))


async def is_quiet(lb: GlobalLoadBalancer) -> None:
    await settle()
    status = await lb.get_status()
    assert (status["total_inflight"], status["queued"]) == (0, 0)
    assert not lb._waiters
