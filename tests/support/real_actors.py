"""Actors on a real Ray: scripted servers, the load balancer, a manager in a round that nobody ends."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import ray
from ray.actor import ActorHandle

from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancerActor
from recipe.async_dapo.rollout.all_workers import RolloutError
from recipe.async_dapo.rollout.coordinator import EarlyStoppingCoordinatorActor
from recipe.async_dapo.rollout.manager import AsyncDAPOAgentLoopManager

from .rounds import spec, tickets
from .router import router_options
from .scripted_server import ScriptedServer

T = TypeVar("T")

PATIENCE_S = 300.0  # what has not happened by then hangs


def within_patience(coroutine: Coroutine[Any, Any, T]) -> T:
    async def main() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await coroutine

    return asyncio.run(main())


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """For what nobody awaits, such as releases; ends with the time limit of `within_patience`."""
    while not await condition():  # noqa: ASYNC110 (another process has no event for it)
        await asyncio.sleep(0.01)


def start_servers(count: int, **options: Any) -> dict[str, ActorHandle]:
    actor = ray.remote(num_cpus=0, max_concurrency=1000)(ScriptedServer)
    return {f"server-{k}": actor.remote(**options) for k in range(count)}


def start_balancer(servers: dict[str, ActorHandle], capacity: int, **options: Any) -> ActorHandle:
    return GlobalLoadBalancerActor.remote(servers, router_options(capacity) | options)


def waiting_manager(balancer: ActorHandle, *, engine_timeout_s: float = PATIENCE_S) -> AsyncDAPOAgentLoopManager:
    """In a round that nobody ends."""
    manager = object.__new__(AsyncDAPOAgentLoopManager)
    options: Any = SimpleNamespace(
        round_timeout_s=PATIENCE_S, stop_timeout_s=PATIENCE_S, engine_timeout_s=engine_timeout_s
    )
    manager._options = options
    manager._balancer = balancer
    manager._coordinator = EarlyStoppingCoordinatorActor.remote(balancer, PATIENCE_S)
    manager._round_id, manager._started = "step-1", time.monotonic()
    manager._look_at = manager._started + engine_timeout_s / 2
    manager._tell_at = manager._started + PATIENCE_S
    manager._worker_refs, manager._deadline = [], None
    validation = spec(stop_rule=None, target_valid_groups=0, drains=True)
    ray.get(manager._coordinator.open_round.remote(validation, tickets("a")))
    return manager


def next_error(manager: AsyncDAPOAgentLoopManager) -> RolloutError | None:
    try:
        manager.next_event()
    except RolloutError as error:
        return error
    return None
