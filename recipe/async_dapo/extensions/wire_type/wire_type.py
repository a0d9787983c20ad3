"""The type in which weights travel: the engine's own, which is half the bytes where the trainer holds them in fp32.

An engine in bf16 rounds what it gets to bf16. Rounded before they are sent, the same values arrive with the same bits.
Some engines keep a few parameters in a wider type, such as the bias of a router or the decay of linear attention. Those
travel as the trainer holds them. They are found by the ends of their names; where an engine has a wide parameter under
a name that the trainer does not know, nothing is cast.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from ...weights.stream import NamedTensor

EngineTypes = tuple[str, list[str]]  # an engine's type by name; ends of the names of what is wider


@dataclass(frozen=True, slots=True, kw_only=True)
class WireType:
    """What weights are cast to before they are sent.

    Attributes:
        kept: ends of the names of tensors that are not cast.
    """

    dtype: torch.dtype
    kept: frozenset[str] = frozenset()

    @classmethod
    def agreed(cls, engines: Sequence[EngineTypes], sent: Collection[str]) -> Self | None:
        """None: nothing is cast.

        Args:
            engines: what each process of each engine says of its parameters.
            sent: names of what the trainer sends.
        """
        kept = frozenset(end for _, ends in engines for end in ends)
        types = {name for name, _ in engines}
        if len(types) != 1 or not kept <= {end_of(name) for name in sent}:
            return None
        return cls(dtype=getattr(torch, *types), kept=kept)

    def narrows(self, tensor: torch.Tensor) -> bool:
        return tensor.is_floating_point() and tensor.dtype.itemsize > self.dtype.itemsize

    def cast(self, weights: Iterable[NamedTensor]) -> Iterator[NamedTensor]:
        """A stream of weights in this type. Shards are cast before they are gathered, where none has to stay wide."""
        stream, gathering = iter(weights), nullcontext() if self.kept else _CastShards(self)
        while True:
            with gathering:
                item = next(stream, None)
            if item is None:
                return
            name, tensor = item
            is_cast = self.narrows(tensor) and end_of(name) not in self.kept
            yield name, tensor.to(self.dtype) if is_cast else tensor


def end_of(name: str) -> str:
    """What trainer and engine call a parameter alike: its own name and that of its module."""
    return ".".join(name.split(".")[-2:])


def types_of(models: Iterable[torch.nn.Module], dtype: torch.dtype) -> EngineTypes:
    """What an engine says of its parameters.

    Args:
        dtype: of the model's configuration.
    """
    wide: set[str] = set()
    for model in models:
        packed = getattr(model, "packed_modules_mapping", None) or {}
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point() and parameter.dtype.itemsize > dtype.itemsize:
                module, _, own = end_of(name).rpartition(".")
                wide |= {f"{part}.{own}" for part in packed.get(module, [module])}
    return str(dtype).removeprefix("torch."), sorted(wide)


class _CastShards(TorchFunctionMode):
    """While it is active a sharded tensor that is moved to the device is cast there, before ranks gather it: verl does
    both in one expression."""

    def __init__(self, wire: WireType) -> None:
        super().__init__()
        self._wire = wire

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        is_moved = func is torch.Tensor.to and isinstance(result, DTensor)
        return result.to(self._wire.dtype) if is_moved and self._wire.narrows(result) else result
