"""Router replay under FSDP, where verl has none: each token takes the experts again that the engine has sent it to.

The router goes on to weigh them by its present scores, through which gradients flow. A token without a record, as the
last one of each trajectory, goes where the router sends it.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch.nn.utils.rnn import pad_sequence
from torch.overrides import TorchFunctionMode
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.utils.ulysses import get_ulysses_sequence_parallel_rank

from ...config.values import ConfigError

FIELD = "routed_experts"  # verl's name
_LAYER = re.compile(r"\blayers\.(\d+)\.")


class RouteReplay:
    """Of one of verl's FSDP engines: every batch that it reads must have routes.

    Raises:
        ConfigError: if a router chooses in another way than by one call of `topk`, or only one expert.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._forward_step = engine.forward_step
        self._rows_NLK = torch.empty(0)
        routers = [(name, module) for name, module in engine.module.named_modules() if _is_router(module)]
        if not routers:
            raise _refused(type(engine.module).__name__, "has no router of transformers' kind")
        for name, router in routers:
            if inspect.getsource(type(router).forward).count("topk(") != 1 or router.top_k == 1:
                raise _refused(type(router).__name__, "does not choose several experts by one top-k")
            [layer] = _LAYER.findall(name)
            router.forward = partial(self._choose, router.forward, int(layer))
        engine.forward_step = self._read

    def _read(self, micro_batch: TensorDict, *args: Any, **kwargs: Any) -> Any:
        """Also for the passes that read it again for the gradient, which come before the next batch."""
        rows = micro_batch[FIELD].unbind()
        is_packed = tu.get_non_tensor_data(micro_batch, key="use_remove_padding", default=True)
        rows_NLK = torch.cat(rows) if is_packed else pad_sequence(list(rows), batch_first=True).flatten(0, 1)
        self._rows_NLK = rows_NLK.to(get_device_id(), torch.int64)
        return self._forward_step(micro_batch, *args, **kwargs)

    def _choose(self, forward: Callable[..., Any], layer: int, hidden: torch.Tensor, *args: Any) -> Any:
        rank = get_ulysses_sequence_parallel_rank() if self._engine.use_ulysses_sp else 0
        num_tokens = hidden.numel() // hidden.shape[-1]
        with _Chosen(part_of(self._rows_NLK[:, layer], num_tokens, rank)):
            return forward(hidden, *args)


def _is_router(module: torch.nn.Module) -> bool:
    return type(module).__name__.lower().endswith("topkrouter")


def _refused(value: str, what: str) -> ConfigError:
    key = "actor_rollout_ref.rollout.enable_rollout_routing_replay"
    return ConfigError(key, True, f"{value} {what}; set False, or train with Megatron")


def part_of(rows_NK: torch.Tensor, num_tokens: int, rank: int) -> torch.Tensor:
    """A rank's rows of a packed sequence, which verl pads at its end and shares out evenly."""
    part = rows_NK[rank * num_tokens : (rank + 1) * num_tokens]
    return torch.nn.functional.pad(part, (0, 0, 0, num_tokens - len(part)))


class _Chosen(TorchFunctionMode):
    """While it is active `topk` finds these, where they are different ones; a row that is not recorded is zero."""

    def __init__(self, rows_NK: torch.Tensor) -> None:
        super().__init__()
        self._rows_NK = rows_NK
        self._is_recorded_N1 = (rows_NK.sort(-1).values.diff(dim=-1) != 0).all(-1, keepdim=True)

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in (torch.topk, torch.Tensor.topk):
            return found
        chosen = torch.where(self._is_recorded_N1, self._rows_NK, found.indices)
        return torch.return_types.topk((args[0].gather(-1, chosen), chosen))
