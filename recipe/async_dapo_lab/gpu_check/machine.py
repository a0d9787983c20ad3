"""The machine and its packages: looked at once, then judged.

Limits are those below which a run of verl, Ray and vLLM is known to end with an error, or to crawl. What a run of one's
own needs beside that depends on its model.
"""

import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from ...async_dapo.config.values import ConfigError
from ...async_dapo.runtime.verl_version import check_versions
from .verdicts import Verdict, failed, first_failure, passed, skipped

GB = 1e9
SHARED_MEMORY = Path("/dev/shm")
LEAST_CAPABILITY = (8, 0)  # bf16 and flash attention
LEAST_FREE_SHARE = 0.9  # of a GPU's memory
VERSIONS, DRIVER, GPUS = NEEDED = ("versions", "driver and CUDA", "GPUs")  # without these no other theme can run
_IMPORT_S = 180.0  # longest that the import of a package may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Least of each, by device."""

    memory_bytes: float
    disk_bytes: float
    shared_memory_bytes: float
    open_files: int


LIMITS = {
    "cpu": Limits(memory_bytes=8 * GB, disk_bytes=2 * GB, shared_memory_bytes=GB, open_files=1024),
    "cuda": Limits(memory_bytes=32 * GB, disk_bytes=20 * GB, shared_memory_bytes=8 * GB, open_files=8192),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    name: str
    memory_bytes: float
    free_bytes: float
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is known of this machine. An error is empty where there is none."""

    device: str  # cpu or cuda
    versions: str  # of verl, vLLM and TransferQueue
    versions_error: str
    torch: str
    torch_cuda: str  # the CUDA that torch was built for; empty for its CPU build
    driver: str  # NVIDIA's; empty where there is none
    gpus: tuple[Gpu, ...]
    gpu_error: str  # torch's own, when it looks for GPUs
    flash_attention: str  # its version, or that of the package that brings its kernels; empty where there is none
    flash_attention_error: str  # of its import
    memory_bytes: float  # available
    disk_bytes: float  # free where the output goes
    shared_memory_bytes: float  # free
    open_files: int  # the limit of this process; -1 = none

    @property
    def attention(self) -> str:
        """transformers' name of the trainer's."""
        has_package = self.flash_attention.startswith("flash-attn") and not self.flash_attention_error
        return "flash_attention_2" if has_package else "sdpa"


def judgements(machine: Machine, *, gpus: int) -> dict[str, Verdict]:
    """Every check of the machine, by name, in the order in which a reader mends them."""
    limits, files = LIMITS[machine.device], machine.open_files
    on_gpus = {DRIVER: _driver(machine), GPUS: _gpus(machine.gpus, gpus), "flash attention": _flash(machine)}
    if machine.device == "cpu":
        on_gpus = dict.fromkeys(on_gpus, skipped("needs a GPU"))
    ulimit = f"run: ulimit -n {limits.open_files}; in docker set --ulimit, with Slurm --propagate=NONE"
    shm = (
        f"docker: --shm-size=64g; Kubernetes: an emptyDir with medium: Memory at {SHARED_MEMORY}; Slurm: the "
        "container's option"
    )
    return {
        VERSIONS: first_failure(
            (
                not machine.versions_error,
                machine.versions_error,
                "install the versions that it names, in a new environment",
            ),
            else_found=f"{machine.versions}, torch=={machine.torch}",
        ),
        **on_gpus,
        "host memory": _room(machine.memory_bytes, limits.memory_bytes, "available", "end other processes"),
        "disk": _room(machine.disk_bytes, limits.disk_bytes, "free for the output", "set --output to a larger disk"),
        # Of Ray's objects, NCCL, vLLM's queues, and weights where CUDA IPC cannot be used.
        "shared memory": _room(machine.shared_memory_bytes, limits.shared_memory_bytes, f"in {SHARED_MEMORY}", shm),
        "ulimits": first_failure(
            (files < 0 or files >= limits.open_files, f"at most {files} open files", ulimit),
            else_found=f"{'any number of' if files < 0 else files} open files",
        ),
    }


def _driver(machine: Machine) -> Verdict:
    return first_failure(
        (
            bool(machine.driver),
            "nvidia-smi does not run",
            "install NVIDIA's driver; start a container with --gpus all; on a machine without GPUs, set --device cpu",
        ),
        (
            bool(machine.torch_cuda),
            f"torch=={machine.torch} is a build without CUDA",
            "run: pip install 'verl[vllm]==0.9.1' in a new environment",
        ),
        (
            not machine.gpu_error,
            f"driver {machine.driver}, CUDA {machine.torch_cuda}: torch finds no GPU: {machine.gpu_error}",
            "install a driver for this CUDA, restart after its update; check CUDA_VISIBLE_DEVICES",
        ),
        else_found=f"driver {machine.driver}, CUDA {machine.torch_cuda}",
    )


def _gpus(found: Sequence[Gpu], wanted: int) -> Verdict:
    """Number, kind and free memory."""
    if len(found) < wanted:
        return failed(
            f"{len(found)} of {wanted} GPUs are visible",
            "set --gpus to fewer, or make more visible: CUDA_VISIBLE_DEVICES, or the container's --gpus",
        )
    for number, gpu in enumerate(found[:wanted]):
        if gpu.capability < LEAST_CAPABILITY:
            return failed(
                f"GPU {number} ({gpu.name}) has compute capability {'.'.join(map(str, gpu.capability))}",
                "bf16 and flash attention need 8.0 or higher (A100 and later)",
            )
        if gpu.free_bytes < LEAST_FREE_SHARE * gpu.memory_bytes:
            return failed(
                f"GPU {number} has {gpu.free_bytes / GB:.0f} of {gpu.memory_bytes / GB:.0f} GB free",
                "end the processes that hold the rest, such as engines left by another run; nvidia-smi lists them",
            )
    names = {gpu.name for gpu in found[:wanted]}
    return passed(f"{wanted} x {', '.join(sorted(names))}, {found[0].memory_bytes / GB:.0f} GB")


def _flash(machine: Machine) -> Verdict:
    return first_failure(
        (
            not machine.flash_attention_error,
            f"cannot be imported: {machine.flash_attention_error}",
            "build it for this torch; run: pip install --no-build-isolation --no-cache-dir --force-reinstall "
            "--no-deps flash-attn==2.8.3",
        ),
        (
            bool(machine.flash_attention),
            "not installed, and verl's trainer uses it",
            "run: pip install --no-build-isolation flash-attn==2.8.3; or train with "
            "++actor_rollout_ref.model.override_config.attn_implementation=sdpa and "
            "actor_rollout_ref.model.use_remove_padding=False",
        ),
        else_found=machine.flash_attention,
    )


def _room(found: float, least: float, where: str, remedy: str) -> Verdict:
    said = f"{found / GB:.1f} GB {where}"
    return first_failure((found >= least, said, f"needs {least / GB:.0f} GB: {remedy}"), else_found=said)


def probe(device: str, *, output: Path) -> Machine:
    """Look at this machine. Nothing of it stays: CUDA is asked in a process of its own."""
    versions, versions_error = _versions()
    wants_gpu = device == "cuda"
    torch_version, torch_cuda, gpu_error, gpus = _torch(asks_for_gpus=wants_gpu)
    flash, flash_error = _flash_attention() if wants_gpu else ("", "")
    return Machine(
        device=device,
        versions=versions,
        versions_error=versions_error,
        torch=torch_version,
        torch_cuda=torch_cuda,
        driver=_nvidia_smi() if wants_gpu else "",
        gpus=gpus,
        gpu_error=gpu_error,
        flash_attention=flash,
        flash_attention_error=flash_error,
        memory_bytes=psutil.virtual_memory().available,
        disk_bytes=shutil.disk_usage(output).free,
        shared_memory_bytes=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def _versions() -> tuple[str, str]:
    try:
        return check_versions(), ""
    except ConfigError as error:
        return "", str(error)


# Prints torch's version, its CUDA, and a line for each GPU: name, memory, free memory, compute capability.
_ASK_TORCH = """
import torch
print(torch.__version__)
print(torch.version.cuda or "")
if {asks}:
    torch.cuda.init()
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        major, minor = torch.cuda.get_device_capability(index)
        print(torch.cuda.get_device_name(index), total, free, major, minor, sep="|")
"""


def _torch(*, asks_for_gpus: bool) -> tuple[str, str, str, tuple[Gpu, ...]]:
    said, error = _python(_ASK_TORCH.format(asks=asks_for_gpus))
    lines = said.splitlines()
    version, cuda = lines[:2] if len(lines) > 1 else ("", "")
    gpus = []
    for line in lines[2:]:
        name, total, free, major, minor = line.split("|")
        gpus.append(Gpu(name=name, memory_bytes=int(total), free_bytes=int(free), capability=(int(major), int(minor))))
    return version, cuda, error, tuple(gpus)


def _flash_attention() -> tuple[str, str]:
    """verl's trainer takes the package `flash_attn`, or the kernels that `kernels` fetches."""
    if find_spec("flash_attn") is not None:
        said, error = _python("import flash_attn; print('flash-attn', flash_attn.__version__)")
        return said.strip(), error
    return ("kernels, which fetches it from a hub" if find_spec("kernels") is not None else ""), ""


def _python(program: str) -> tuple[str, str]:
    """What a process of its own prints, and the last line of its error."""
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=_IMPORT_S)
    except subprocess.TimeoutExpired:
        return "", f"not done after {_IMPORT_S:.0f} s"
    lines = done.stderr.strip().splitlines()
    return done.stdout, "" if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}")


def _nvidia_smi() -> str:
    """The driver's version."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    found = re.match(r"\d+\.[\d.]+", subprocess.run(command, capture_output=True, text=True, timeout=60).stdout)
    return found[0] if found else ""
