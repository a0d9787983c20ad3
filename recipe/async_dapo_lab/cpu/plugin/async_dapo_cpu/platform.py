"""verl's view of a machine without accelerators."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


class _CpuDeviceModule(ModuleType):
    """`torch.cpu` plus the parts of the `torch.cuda` namespace that verl calls on every device.

    Memory is the resident set of the process, in bytes, and the free memory of the machine.
    """

    def __init__(self) -> None:
        super().__init__("async_dapo_cpu.device_module")
        self.get_rng_state = torch.get_rng_state
        self.set_rng_state = torch.set_rng_state
        for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
            setattr(self, name, _resident_bytes)
        for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "set_device"):
            setattr(self, name, _ignore)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def get_device_name(self, device: object = None) -> str:
        return "CPU"


def _resident_bytes(*_args: object, **_kwargs: object) -> int:
    return psutil.Process().memory_info().rss


def _ignore(*_args: object, **_kwargs: object) -> None:
    return None


_DEVICE_MODULE = _CpuDeviceModule()


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """One logical device per process, gloo between processes, weights to vLLM through shared memory."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return _DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        """A device, not an index: verl calls `.to(current_device())` and torch reads an index as CUDA."""
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        """A logical resource: `ray.init(num_gpus=N)` declares N of them, none has to exist."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        """KV cache of 1 GiB; one unbound thread an engine: several engines and all of Ray share the cores."""
        return {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}

    def cudart(self) -> None:
        return None
