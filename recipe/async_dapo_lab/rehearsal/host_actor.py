"""The actor that holds all servers of a rehearsal, and what verl gets in place of each server's handle.

Every process that gets an actor's handle loads the actor's class: these can be loaded without vLLM (see
`engines/server_actor.py`).
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import ray
from omegaconf import DictConfig
from ray.actor import ActorHandle

HOST_NAME = "rehearsed_servers"


class HostActor:
    """A `ServerHost` as an actor."""

    def __init__(self, config: DictConfig) -> None:
        from .servers import ServerHost

        self._host = ServerHost(config)

    async def launch(self, rank: int, **arguments: Any) -> None:
        await self._host.launch(rank, **arguments)

    async def call(self, rank: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await self._host.call(rank, method, args, kwargs)

    async def take_lateness(self) -> list[float]:
        return self._host.take_lateness()


@dataclass(frozen=True, slots=True)
class ServerHandle:
    """Stands for the handle of one server's actor: `handle.method.remote(...)`."""

    host: ActorHandle
    rank: int

    def __getattr__(self, name: str) -> SimpleNamespace:
        if name.startswith("__"):
            raise AttributeError(name)

        def remote(*args: Any, **kwargs: Any) -> ray.ObjectRef:
            return self.host.call.remote(self.rank, name, args, kwargs)

        return SimpleNamespace(remote=remote)


def start_host(config: DictConfig, *, num_servers: int) -> ActorHandle:
    """Start the actor that holds all servers; replicas find it by its name while the handle is kept."""
    limit = num_servers * max(1000, config.actor_rollout_ref.rollout.max_num_seqs + 16)  # that of verl's servers
    return ray.remote(num_cpus=0, max_concurrency=limit)(HostActor).options(name=HOST_NAME).remote(config)
