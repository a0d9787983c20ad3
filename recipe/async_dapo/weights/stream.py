"""A stream of weights that ends with its stamp, and the checksum that both ends compute over it.

The checksum takes the names, shapes and types of all tensors, and the first values of every sixteenth: some
milliseconds beside a transfer, and nothing is sent but the stamp.
"""

import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable

import torch
from verl.workers.rollout.utils import ensure_async_iterator

from ..core.weight_stamp import WeightStamp

NamedTensor = tuple[str, torch.Tensor]

STAMP = "async_dapo.weight_stamp"  # travels as a tensor of this name

_SAMPLED_EVERY = 16
_SAMPLED_VALUES = 64


class StreamChecksum:
    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8)
        self._tensors = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        self._digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if self._tensors % _SAMPLED_EVERY == 0 and tensor.numel():
            self._digest.update(_first_values(tensor))
        self._tensors += 1

    def value(self) -> str:
        return self._digest.hexdigest()


async def stamped(
    weights: Iterable[NamedTensor] | AsyncIterable[NamedTensor], *, run: str, version: int | None
) -> AsyncIterator[NamedTensor]:
    checksum = StreamChecksum()
    async for name, tensor in ensure_async_iterator(weights):
        checksum.add(name, tensor)
        yield name, tensor
    stamp = WeightStamp(run=run, version=version, checksum=checksum.value())
    yield STAMP, torch.frombuffer(bytearray(stamp.encode()), dtype=torch.uint8)


class StampReader:
    """Takes the stamp out of a stream that arrives in buckets."""

    def __init__(self) -> None:
        self.stamp: WeightStamp | None = None
        self._checksum = StreamChecksum()

    def without_stamp(self, bucket: Iterable[NamedTensor]) -> list[NamedTensor]:
        weights = []
        for name, tensor in bucket:
            if name == STAMP:
                self.stamp = WeightStamp.decode(_bytes_of(tensor))
            else:
                self._checksum.add(name, tensor)
                weights.append((name, tensor))
        return weights

    def checksum(self) -> str:
        return self._checksum.value()


def _first_values(tensor: torch.Tensor) -> bytes:
    """Of the first row, so that not even a strided tensor is copied whole."""
    row = tensor.detach()
    while row.dim() > 1:
        row = row[0]
    return _bytes_of(row.reshape(-1)[:_SAMPLED_VALUES])


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()
