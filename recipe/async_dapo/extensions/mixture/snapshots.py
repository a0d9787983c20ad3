"""Earlier versions of a training worker's weights in CPU memory: the shard of this rank, trained parameters only. The
functions are called in each worker (`call_extension` of `weights/sender.py`), and keep them there.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from verl.utils.device import get_torch_device


class WeightSnapshots:
    """Snapshots of a module by policy version.

    A snapshot has the given dtype; the newest weights, which training goes on with, come back bit by bit.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._module, self._dtype = module, dtype
        self._kept: dict[int, list[Tensor]] = {}
        self._newest: list[Tensor] | None = None

    @property
    def kept_bytes(self) -> int:
        return sum(tensor.nbytes for tensors in self._kept.values() for tensor in tensors)

    def keep(self, version: int, *, oldest: int) -> None:
        """Take the weights that the module has as those of `version`, and forget versions before `oldest`."""
        self._kept = {known: tensors for known, tensors in self._kept.items() if known >= oldest}
        if version >= oldest:
            self._kept[version] = [_copy(shard, self._dtype) for shard in self._shards()]

    def load(self, version: int) -> None:
        """Give the module the weights of a version that is kept."""
        if self._newest is None:
            self._newest = [_copy(shard, shard.dtype) for shard in self._shards()]
        self._fill(self._kept[version])

    def load_newest(self) -> None:
        """Give the module its own weights back, if it has others."""
        if self._newest is not None:
            self._fill(self._newest)
            self._newest = None

    @torch.no_grad()
    def _fill(self, tensors: list[Tensor]) -> None:
        for shard, tensor in zip(self._shards(), tensors, strict=True):
            shard.copy_(tensor)

    @torch.no_grad()
    def _shards(self) -> list[Tensor]:
        """What this rank holds of each parameter; what FSDP2 has gathered for a forward pass is dropped first. verl may
        still be copying them to the host.
        """
        get_torch_device().synchronize()
        for module in self._module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        trained = (parameter for parameter in self._module.parameters() if parameter.requires_grad)
        return [p.to_local() if isinstance(p, DTensor) else p.detach() for p in trained]


def begin(worker: Any) -> None:
    """Snapshots have the type that the model computes in: they lose nothing."""
    engine = worker.actor.engine
    worker.snapshots = WeightSnapshots(engine.module, engine._autocast_dtype)


def keep(worker: Any, version: int, oldest: int) -> int:
    """Returns the bytes of all snapshots of this rank."""
    kept: WeightSnapshots = worker.snapshots
    kept.keep(version, oldest=oldest)
    return kept.kept_bytes


def load(worker: Any, version: int) -> None:
    worker.snapshots.load(version)


def load_newest(worker: Any) -> None:
    worker.snapshots.load_newest()


def _copy(shard: Tensor, dtype: torch.dtype) -> Tensor:
    return shard.detach().to("cpu", dtype, copy=True)
