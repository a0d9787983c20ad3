"""verl's replicas and training workers, as the trainer's calls to engines see them, on virtual time."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ray.exceptions import ActorUnavailableError, RayActorError

from recipe.async_dapo.runtime.aio import RECONNECT_S

from .fake_handle import FakeHandle, RemoteCall
from .simulation import REMOTE


class SimulatedReplica:
    """An engine with one server, whose processes end with it."""

    def __init__(self, replica_rank: int, handle: FakeHandle) -> None:
        self.replica_rank = replica_rank
        self.servers = [handle]
        self.processes: list[Any] = []
        self.server_address = f"server-{replica_rank}"
        self.workers: list[FakeHandle] = []
        self.resource_pool = SimpleNamespace(pgs=None)

    def __str__(self) -> str:
        return f"engine {self.replica_rank}"

    def workers_beside(self) -> list[Any]:
        return []


class SimulatedTrainingWorkers:
    """One rank an engine, which survives its engine.

    Args:
        hanging: ranks that never end an update.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, handles: Sequence[FakeHandle]) -> None:
        self._loop = loop
        self._handles = handles
        self.hanging: set[int] = set()

    def update_weights(self, *, global_steps: int, mode: str) -> list[RemoteCall]:
        assert mode == "naive"
        calls = [self._update(rank, global_steps) for rank in range(len(self._handles))]
        return [RemoteCall(self._loop.create_task(call, name=f"{REMOTE} weight update")) for call in calls]

    async def _update(self, rank: int, global_steps: int) -> None:
        if rank in self.hanging:
            await asyncio.Event().wait()
        while True:
            try:
                await self._handles[rank].set_global_steps.remote(global_steps)
                return
            except ActorUnavailableError:
                await asyncio.sleep(RECONNECT_S)
            except RayActorError:
                return
