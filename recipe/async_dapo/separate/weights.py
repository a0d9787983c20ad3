"""Weights in Ray's object store: the trainer leaves a version there and goes on; each engine takes it when its turn has
come. Ray frees a version when nothing refers to it any more.

    training rank 0: tensors, then their stamp --put--> buckets --Ray, once a node--> an engine's workers --> vLLM
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import ray
import torch
from ray import ObjectRef
from verl.checkpoint_engine.base import CheckpointEngineWorker
from verl.single_controller.base.decorator import Dispatch, register

from ..weights.sender import AsyncDAPOActorRolloutRefWorker, WeightSender
from ..weights.stream import NamedTensor, run_name, sockets_folder, stamped

BUCKET_BYTES = 256 * 2**20  # at least a tensor; several travel at once


async def leave_in_store(weights: AsyncIterator[NamedTensor]) -> list[ObjectRef]:
    """Returns the buckets, in order."""
    buckets: list[ObjectRef] = []
    tensors: list[Any] = []
    size = 0
    async for name, tensor in weights:
        if tensors and size + tensor.nbytes > BUCKET_BYTES:
            buckets.append(ray.put(tensors))
            tensors, size = [], 0
        data = tensor.detach().to("cpu").contiguous().view(-1).view(torch.uint8).numpy()  # numpy has not all types
        tensors.append((name, tensor.shape, tensor.dtype, data))
        size += tensor.nbytes
    return [*buckets, ray.put(tensors)] if tensors else buckets


async def take_from_store(buckets: Sequence[ObjectRef]) -> AsyncIterator[NamedTensor]:
    """The tensors of all buckets, which may have been left on another node."""
    for bucket in buckets:
        for name, shape, dtype, data in await bucket:
            yield name, torch.tensor(data).view(dtype).view(shape)  # a copy: Ray's memory is read-only


class SeparateActorRolloutRefWorker(AsyncDAPOActorRolloutRefWorker):
    """A training worker that leaves weights for engines on GPUs of their own."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def leave_weights(self, version: int) -> list[ObjectRef]:
        """Rank 0 returns where the weights are."""
        engine = self.actor.engine
        weights, _ = engine.get_per_tensor_param()
        buckets: list[ObjectRef] = []
        if torch.distributed.get_rank() == 0:
            run = run_name(sockets_folder())
            buckets = await leave_in_store(stamped(weights, run=run, version=version))
        else:  # every rank gathers every tensor together with the others
            for _ in weights:
                pass
        if engine.is_param_offload_enabled:
            engine.to("cpu", model=True, optimizer=False, grad=False)
        return buckets


class WeightTaker(CheckpointEngineWorker):
    """verl's worker beside one GPU of an engine that has GPUs of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        verls: Any = self.server_adapter
        self._sender = WeightSender(verls.config, verls.model_config, None, verls.replica_rank)

    async def take_weights(self, version: int, buckets: Sequence[ObjectRef]) -> None:
        """Bring weights that the trainer has left to the engine, which has stopped."""
        await self._sender.pass_on(take_from_store(buckets), version=version)
