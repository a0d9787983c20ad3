"""Megatron-Core on a machine without a GPU, in one process: stand-ins for Transformer Engine, which has no CPU build,
and for what Megatron calls of `torch.cuda`. verl, Megatron-Core and Megatron-Bridge are as they are.

`make test-megatron` installs their packages into `outputs/megatron`.
"""

import contextlib
import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import peft  # noqa: F401 (it looks for Transformer Engine when it is imported)
import torch
import torch.nn.functional as F
import typing_extensions
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

PACKAGES = Path(__file__).parents[2] / "outputs" / "megatron"
CPU = torch.device("cpu")
# Transformer Engine below 2.0 asks for the fewest of its modules.
TE_VERSION = "1.12.0"


def prepare() -> None:
    """Call this in a process of its own, before anything of Megatron is imported."""
    assert PACKAGES.is_dir(), "run `make test-megatron`, which installs Megatron"
    sys.path.append(str(PACKAGES))
    typing.override = typing_extensions.override  # Python 3.12's
    _stand_in_for_cuda()
    _stand_in_for_transformer_engine()
    _OnCpu().__enter__()


class RMSNorm(nn.Module):
    def __init__(self, normalized_shape: int, *, eps: float, sequence_parallel: bool, params_dtype: Any, **_: Any):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(normalized_shape, dtype=params_dtype))
        self.weight.sequence_parallel = sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Linear(nn.Module):
    """Ranks hold columns or rows of it, and gather with Megatron's own functions."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        parallel_mode: str,
        sequence_parallel: bool,
        tp_group: Any,
        tp_size: int,
        init_method: Any,
        bias: bool,
        params_dtype: Any,
        **_: Any,
    ) -> None:
        super().__init__()
        assert not bias
        columns = parallel_mode == "column"
        shape = (out_features // tp_size, in_features) if columns else (out_features, in_features // tp_size)
        self.parallel_mode, self.sequence_parallel = parallel_mode, sequence_parallel
        self.tp_group, self.tp_size = tp_group, tp_size
        self.weight = nn.Parameter(torch.empty(shape, dtype=params_dtype))
        init_method(self.weight)
        self.weight.tensor_model_parallel = True
        self.weight.partition_dim, self.weight.partition_stride = 0 if columns else 1, 1

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        from megatron.core.tensor_parallel import mappings

        if self.tp_size == 1:
            return F.linear(x, self.weight)
        if self.parallel_mode == "column":
            gather = mappings.gather_from_sequence_parallel_region
            enter = gather if self.sequence_parallel else mappings.copy_to_tensor_model_parallel_region
            return F.linear(enter(x, group=self.tp_group), self.weight)
        scatter = mappings.reduce_scatter_to_sequence_parallel_region
        leave = scatter if self.sequence_parallel else mappings.reduce_from_tensor_model_parallel_region
        return leave(F.linear(x, self.weight), group=self.tp_group)


class LayerNormLinear(Linear):
    def __init__(self, in_features: int, out_features: int, *, eps: float, normalization: str, **kwargs: Any) -> None:
        super().__init__(in_features, out_features, **kwargs)
        assert normalization == "RMSNorm"
        self.eps = eps
        self.layer_norm_weight = nn.Parameter(torch.ones(in_features, dtype=kwargs["params_dtype"]))
        self.layer_norm_weight.sequence_parallel = self.sequence_parallel

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        return super().forward(F.rms_norm(x, (x.shape[-1],), self.layer_norm_weight, self.eps))


class DotProductAttention(nn.Module):
    """Causal, of packed sequences, each of which begins at a bound."""

    def __init__(self, num_attention_heads: int, kv_channels: int, *, softmax_scale: float | None, **_: Any) -> None:
        super().__init__()
        self.scale = softmax_scale

    def forward(
        self,
        query_THD: Tensor,
        key_THD: Tensor,
        value_THD: Tensor,
        attention_mask: None,
        *,
        attn_mask_type: str,
        qkv_format: str,
        cu_seqlens_q_padded: Tensor,
        **_: Any,
    ) -> Tensor:
        assert (attn_mask_type, qkv_format) == ("padding_causal", "thd")
        lens = cu_seqlens_q_padded.diff().tolist()
        parts = zip(
            *(whole.transpose(0, 1).split(lens, dim=1) for whole in (query_THD, key_THD, value_THD)), strict=True
        )
        found = [
            F.scaled_dot_product_attention(*part, is_causal=True, scale=self.scale, enable_gqa=True) for part in parts
        ]
        return torch.cat(found, dim=1).transpose(0, 1).flatten(1)


class _Anything(ModuleType):
    """A module of which Megatron takes names that it does not use here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"is_fp8_enabled": staticmethod(lambda: False)})


def _stand_in_for_transformer_engine() -> None:
    """Modules that are not named here cannot be imported, and Megatron does without them."""
    root = ModuleType("transformer_engine")
    root.__path__, root.__version__ = [], TE_VERSION
    modules = {"": root}
    layers = ModuleType("transformer_engine.pytorch")
    layers.__path__ = []
    for layer in (RMSNorm, Linear, LayerNormLinear, DotProductAttention):
        setattr(layers, layer.__name__, layer)
    for unused in ("LayerNorm", "GroupedLinear", "fp8_model_init"):
        setattr(layers, unused, type(unused, (nn.Module,), {}))
    modules[".pytorch"] = layers
    for name in ("common", "common.recipe", *(f"pytorch.{part}" for part in _PARTS)):
        modules[f".{name}"] = _Anything(f"transformer_engine.{name}")
        modules[f".{name}"].__path__ = []
    for name, module in modules.items():
        sys.modules[f"transformer_engine{name}"] = module
        parent, _, own = name.rpartition(".")
        if own:
            setattr(modules[parent], own, module)


_PARTS = ("cpp_extensions", "distributed", "float8_tensor", "fp8", "module", "module.base", "ops")


class _OnCpu(TorchFunctionMode):
    """What is asked for on a GPU is made on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        return func(*(map(_on_cpu, args) if func is Tensor.to else args), **kwargs)


def _on_cpu(value: Any) -> Any:
    is_cuda = isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda"
    return CPU if is_cuda else value


class _Generators:
    def __getitem__(self, device: Any) -> torch.Generator:
        return torch.default_generator


class _Stream:
    """Also an event: whatever is called is done already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def _stand_in_for_cuda() -> None:
    cuda: Any = torch.cuda
    cuda._initialized = True
    cuda.current_device = lambda: CPU
    cuda.default_generators = _Generators()
    cuda.manual_seed = torch.default_generator.manual_seed
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.set_rng_state = cuda.random.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.is_current_stream_capturing = lambda: False
    cuda.Stream = cuda.Event = cuda.current_stream = cuda.default_stream = _Stream
    cuda.stream = lambda _: contextlib.nullcontext()
    for name in ("empty_cache", "ipc_collect", "set_device", "synchronize"):
        setattr(cuda, name, lambda *_, **__: None)
    tensor: Any = Tensor
    tensor.cuda = nn.Module.cuda = lambda self, *_, **__: self
    own_type = Tensor.type

    def type_on_gpu(self: Tensor, dtype: Any = None, **kwargs: Any) -> Any:
        """Megatron's optimizers know parameters by the names of their types on GPUs."""
        if dtype is None:
            return "torch.cuda." + own_type(self).rpartition(".")[2]
        return own_type(self, dtype, **kwargs)

    tensor.type = type_on_gpu
