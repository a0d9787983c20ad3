"""A checkpoint engine for verl's separate_async without GPUs: weights through Ray's object store.

verl loads it by `rollout.checkpoint_engine.custom_backend_module`, on its own terms: all engines wait for the trainer,
and it for them. What verl brings needs NCCL, or RDMA.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import ray
import torch
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.utils import ensure_async_iterator

NAME = "object_store"


class Place:
    """Where receivers wait for what the sender has left."""

    def __init__(self) -> None:
        # By version: the newest, as soon as it is left.
        self._buckets: dict[int, asyncio.Future[list[ray.ObjectRef]]] = {}

    async def put(self, version: int, buckets: list[ray.ObjectRef]) -> None:
        waited_for = self._of(version)
        self._buckets = {version: waited_for}
        waited_for.set_result(buckets)

    async def get(self, version: int) -> list[ray.ObjectRef]:
        return await self._of(version)

    def _of(self, version: int) -> asyncio.Future[list[ray.ObjectRef]]:
        return self._buckets.setdefault(version, asyncio.get_running_loop().create_future())


@CheckpointEngineRegistry.register(NAME)
class ObjectStoreEngine(CheckpointEngine):
    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._is_master = is_master
        # It stays from one update to the next: to start it takes longer than to send these weights.
        self._place: Any = ray.remote(num_cpus=0)(Place).remote() if is_master else None

    def prepare(self) -> Any:
        return self._place

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        place = metadata[0]
        return {"place": [place] * actor_wg_world_size}, {"place": [place] * rollout_world_size}

    def init_process_group(self, place: Any) -> None:
        self._place = place

    def finalize(self) -> None:
        pass  # nothing is held but the place

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        from recipe.async_dapo.extensions.separate.relay import leave_in_store  # an extension, which a copy may lack

        if self._is_master:
            await self._place.put.remote(global_steps, await leave_in_store(ensure_async_iterator(weights)))
            return
        for _ in weights:  # every rank gathers with the others
            pass

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        from recipe.async_dapo.extensions.separate.relay import take_from_store

        async for name, tensor in take_from_store(await self._place.get.remote(global_steps)):
            yield name, tensor
