"""Weights in Ray's object store: the trainer leaves a version there and goes on; each engine takes it when its turn has
come. Ray frees a version when nothing refers to it any more.

    training rank 0: tensors, then their stamp --put--> buckets --Ray, once a node--> an engine's workers --> vLLM
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np
import ray
import torch
from ray import ObjectRef

NamedTensor = tuple[str, torch.Tensor]
BUCKET_BYTES = 256 * 2**20  # at least a tensor; several travel at once


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor is in its bucket."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    start: int
    end: int  # [bytes]


async def leave_in_store(weights: AsyncIterator[NamedTensor]) -> list[ObjectRef]:
    """Returns the buckets, in order."""
    buckets: list[ObjectRef] = []
    tensors: list[NamedTensor] = []
    size = 0
    async for name, tensor in weights:
        if tensors and size + tensor.nbytes > BUCKET_BYTES:
            buckets.append(_put(tensors))
            tensors, size = [], 0
        tensors.append((name, tensor.detach().to("cpu")))
        size += tensor.nbytes
    if tensors:
        buckets.append(_put(tensors))
    return buckets


async def take_from_store(buckets: Sequence[ObjectRef]) -> AsyncIterator[NamedTensor]:
    """The tensors of all buckets, which may have been left on another node."""
    for bucket in buckets:
        places, data = await bucket
        for place in places:
            values = torch.from_numpy(data[place.start : place.end].copy())  # Ray's memory is read-only
            yield place.name, values.view(place.dtype).view(place.shape)


def _put(tensors: Sequence[NamedTensor]) -> ObjectRef:
    data = np.empty(sum(tensor.nbytes for _, tensor in tensors), dtype=np.uint8)
    places, start = [], 0
    for name, tensor in tensors:
        end = start + tensor.nbytes
        data[start:end] = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        places.append(_Place(name, tensor.shape, tensor.dtype, start, end))
        start = end
    return ray.put((places, data))
