"""Earlier versions of a training worker's weights in CPU memory: the shard of this rank, trained parameters only."""

from dataclasses import dataclass

import psutil
import ray
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from verl.utils.device import get_torch_device

_ADAM_STATES = 2  # of each parameter, in its dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRoom:
    """What snapshots take on one rank, and what its node has for those of all its ranks."""

    node: str
    snapshot_bytes: int  # one version
    newest_bytes: int  # exact copy of the newest weights, while those of another version are loaded
    optimizer_bytes: int  # what the optimizer will have there after its first step, and does not have yet
    available_bytes: int


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

    def room(self, *, awaits_optimizer: bool) -> SnapshotRoom:
        """
        Args:
            awaits_optimizer: whether the optimizer has no state yet, and will have it in CPU memory.
        """
        shards = self._shards()
        newest_bytes = sum(shard.nbytes for shard in shards)
        return SnapshotRoom(
            node=ray.get_runtime_context().get_node_id(),
            snapshot_bytes=sum(shard.numel() for shard in shards) * self._dtype.itemsize,
            newest_bytes=newest_bytes,
            optimizer_bytes=_ADAM_STATES * newest_bytes if awaits_optimizer else 0,
            available_bytes=psutil.virtual_memory().available,
        )

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


def _copy(shard: Tensor, dtype: torch.dtype) -> Tensor:
    return shard.detach().to("cpu", dtype, copy=True)
