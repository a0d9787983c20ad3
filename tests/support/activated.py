"""What the CPU plugin does in a process that has it on its path: nothing, unless VERL_PLATFORM=cpu."""

import importlib.metadata
import os
from collections.abc import Callable
from typing import Any

import torch
import verl  # noqa: F401 (it loads the plugin)
from async_dapo_cpu.vllm_mends import register
from verl.plugin.platform import PlatformRegistry, get_platform
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.fused_moe import cpu_fused_moe


def state() -> dict[str, Any]:
    try:
        vllm_version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        vllm_version = None
    register()
    register()
    layer = torch.nn.Module()
    layer.experts = torch.nn.Parameter(torch.ones(2))
    layer.experts.weight_loader = "a loader"
    cpu_fused_moe.replace_parameter(layer, "experts", torch.zeros(3))
    layer.w13_weight, layer.w2_weight = torch.ones(1, 64, 32), torch.ones(1, 32, 32)
    torch.cpu._is_amx_tile_supported = lambda: True
    check = cpu_fused_moe.CPUFusedMOE.check_grouped_gemm
    packs = utils.dispatch_cpu_unquantized_gemm
    return {
        "registered": "cpu" in PlatformRegistry.registered_names(),
        "device": get_platform().device_name,
        "patched": is_the_plugins(torch.distributed.init_process_group),
        "vllm_version": vllm_version,
        "keeps_weights": is_the_plugins(packs) and not is_the_plugins(packs.__wrapped__),
        "keeps_experts": len(layer.experts) == 3 and hasattr(layer.experts, "weight_loader"),
        "computes_experts": is_the_plugins(check) and check(None, layer) == (False, "none"),
        "engine_device": os.environ.get("VERL_ENGINE_DEVICE"),
    }


def is_the_plugins(function: Callable[..., Any]) -> bool:
    return "async_dapo_cpu" in function.__code__.co_filename
