"""vLLM plugin: seven places where the CPU build loses what a training run needs; each is mended once per process."""

import os
from functools import wraps
from typing import Any

import torch


def register() -> None:
    """Called by vLLM in every process before a model is built, and before its model runner takes the kernels of the CPU
    build; may be called more than once.
    """
    if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
        _keep_weights_loadable()
        _keep_experts_loadable()
        _compute_experts_in_fp32()
        _tell_chosen_experts()
        _hand_temperatures_to_drafts()
        _copy_blocks_without_streams()
        _let_engines_sleep()


def _keep_weights_loadable() -> None:
    """vLLM's CPU build frees a layer's weight once it is packed for oneDNN. The next weight sync from the trainer would
    then find no parameter to load into, and the trainer would wait forever.
    """
    from vllm.model_executor.layers import utils

    original = utils.dispatch_cpu_unquantized_gemm
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def keep_weight(layer: object, remove_weight: bool) -> None:
        original(layer, remove_weight=False)

    utils.dispatch_cpu_unquantized_gemm = keep_weight


def _keep_experts_loadable() -> None:
    """vLLM's CPU build packs experts into new parameters, which lack the loaders of the old ones: the next weight sync
    would fail.
    """
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe

    original = cpu_fused_moe.replace_parameter
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def keep_loader(layer: torch.nn.Module, name: str, new: object) -> None:
        known = vars(getattr(layer, name))
        original(layer, name, new)
        packed = getattr(layer, name)
        for key in known.keys() - vars(packed).keys():
            setattr(packed, key, known[key])

    cpu_fused_moe.replace_parameter = keep_loader


def _compute_experts_in_fp32() -> None:
    """On a CPU with AMX, vLLM's CPU build computes experts in bf16 alone, and refuses all others as if they were not
    aligned. Here they are computed one by one.
    """
    from vllm.model_executor.layers.fused_moe.cpu_fused_moe import CPUFusedMOE

    original = CPUFusedMOE.check_grouped_gemm
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def check(self: Any, layer: torch.nn.Module) -> tuple[bool, str]:
        if torch.cpu._is_amx_tile_supported() and layer.w13_weight.dtype != torch.bfloat16:
            return False, "none"
        return original(self, layer)

    CPUFusedMOE.check_grouped_gemm = check


def _tell_chosen_experts() -> None:
    """vLLM's CPU build chooses experts and computes them in one call, which vLLM refuses to read routes from. Its model
    runner is imported in workers alone, which make the reader of routes.
    """
    from vllm.model_executor.layers.fused_moe.routed_experts_capturer import RoutedExpertsCapturer

    original = RoutedExpertsCapturer.__init__
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def init(self: RoutedExpertsCapturer, *args: Any, **kwargs: Any) -> None:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        original(self, *args, **kwargs)
        GPUModelRunner._bind_routed_experts_capturer = _read_choices

    RoutedExpertsCapturer.__init__ = init


def _read_choices(runner: Any, capturer: Any) -> None:
    """A weight update makes the kernels anew: they are told apart by the layers that they are called with."""
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe
    from vllm.model_executor.layers.fused_moe.layer import MoERunner

    runners = [module for module in runner.model.modules() if isinstance(module, MoERunner)]
    numbers = {id(module.routed_experts): module.layer_id for module in runners}
    choose, compute, number = cpu_fused_moe.select_experts, cpu_fused_moe.CPUFusedMOE.__call__, 0

    def choose_and_tell(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        weights, chosen = choose(*args, **kwargs)
        capturer.capture(number, chosen)
        return weights, chosen

    def compute_layer(self: Any, layer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal number
        number = numbers[id(layer)]
        return compute(self, layer, *args, **kwargs)

    cpu_fused_moe.select_experts = choose_and_tell
    cpu_fused_moe.CPUFusedMOE.__call__ = compute_layer


def _hand_temperatures_to_drafts() -> None:
    """Where drafts are verified, each request's temperature, top-k and top-p are repeated for its drafted tokens. The
    CPU build's kernel takes whole numbers: it is handed a converted copy, fills that, and leaves the caller's memory as
    it was found, so that drafts are verified at whatever temperatures lay there.
    """
    from vllm.utils import cpu_triton_utils

    cpu_triton_utils.expand_kernel = RepeatForDrafts()


def _copy_blocks_without_streams() -> None:
    """vLLM copies KV blocks to host memory on streams of an accelerator."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import simple_cpu_offload_connector

    from .host_copies import CopiesAtOnce

    simple_cpu_offload_connector.SimpleCPUOffloadWorker = CopiesAtOnce


def _let_engines_sleep() -> None:
    """vLLM refuses it on a CPU, where an engine that sleeps would keep its memory: all else of sleep it does."""
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.is_sleep_mode_available = lambda _: True


class RepeatForDrafts:
    """A kernel as vLLM calls them, `kernel[grid](...)`, that repeats a value of each request for its drafted tokens."""

    def __getitem__(self, grid: tuple[int, ...]) -> "RepeatForDrafts":
        return self

    def __call__(
        self,
        output: torch.Tensor,
        values: torch.Tensor,
        last_tokens: torch.Tensor,
        replace_from: float,
        replace_to: float,
        **_: int,
    ) -> None:
        """Args:
        output: of each drafted token.
        values: of each request; those that are `replace_from` count as `replace_to`.
        last_tokens: number of drafted tokens up to the end of each request.
        """
        drafted = torch.diff(last_tokens, prepend=last_tokens.new_zeros(1))
        values = values.masked_fill(values == replace_from, replace_to)
        output.copy_(values.repeat_interleave(drafted.long()))
