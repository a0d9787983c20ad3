"""A server as an actor whose class can be loaded without vLLM.

Every process that gets an actor's handle loads the actor's class. `AsyncDAPOServer` imports vLLM: load balancer, agent
loop workers and training workers would, too, some eight seconds of a core and 300 MB each.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import ray

WATCH = "watch"  # concurrency group of calls that last as long as the server

# What is called from other processes, all that verl's server has; a test of the contract compares them.
METHODS = (
    "abort_all_requests",
    "abort_request",
    "abort_requests",
    "allow_generation",
    "call_extension",
    "clear_kv_cache",
    "collective_rpc",
    "generate",
    "get_master_address",
    "get_rollout_config",
    "get_server_address",
    "launch_server",
    "open_submission_gate",
    "ping",
    "processes",
    "reattach",
    "release_kv_cache",
    "resume_engine_generation",
    "resume_generation",
    "resume_kv_cache",
    "set_global_steps",
    "set_pd_peer",
    "sleep",
    "start_profile",
    "stop_generation",
    "stop_profile",
    "wait_for_requests_to_drain",
    "wake_up",
)


class ServerActor:
    """Makes a server of its arguments, and answers every call by that server's answer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._server = self._class()(*args, **kwargs)

    def _class(self) -> type[Any]:
        from .server import AsyncDAPOServer

        return AsyncDAPOServer

    @ray.method(concurrency_group=WATCH)
    async def until_death(self) -> None:
        """Never returns: the call fails when the server dies."""
        await asyncio.Event().wait()


def forwarded(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def call(self: ServerActor, *args: Any, **kwargs: Any) -> Any:
        return await self._server.answer(name, *args, **kwargs)

    call.__name__, call.__qualname__ = name, f"{ServerActor.__name__}.{name}"
    return call


for _name in METHODS:
    setattr(ServerActor, _name, forwarded(_name))
