"""Weights in Ray's object store: the trainer leaves a version there and goes on; each engine takes it when its turn has
come. Ray frees a version when nothing refers to it any more.

    training rank 0: tensors, then their proof --put--> buckets --Ray, once a node--> an engine's workers --> vLLM
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import ray
import torch
from ray import ObjectRef

NamedTensor = tuple[str, torch.Tensor]
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


async def take_from_store(
    buckets: Sequence[ObjectRef], on_taken: Callable[[], None] = lambda: None
) -> AsyncIterator[NamedTensor]:
    """The tensors of all buckets, which may have been left on another node.

    Args:
        on_taken: called when all tensors of a bucket have been taken.
    """
    for bucket in buckets:
        for name, shape, dtype, data in await bucket:
            yield name, torch.tensor(data).view(dtype).view(shape)  # a copy: Ray's memory is read-only
        on_taken()
