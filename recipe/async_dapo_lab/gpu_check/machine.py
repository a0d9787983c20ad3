"""The machine and its packages: looked at once, then judged.

Limits are those below which a run of verl, Ray and vLLM is known to end with an error, or to crawl. What a run of one's
own needs beside that depends on its model.
"""

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

THEME = "1. machine"
GB = 1e9
SHARED_MEMORY = Path("/dev/shm")
LEAST_CAPABILITY = (8, 0)  # bf16 and flash attention
LEAST_FREE_SHARE = 0.9  # of a GPU's memory
VERSIONS, GPUS = NEEDED = ("versions", "GPUs")  # without these no other theme can run
LOOP = "without both, log-probs are a Python loop, about 0.1 ms a token (an estimate), minutes a step"
_IMPORT_S = 180.0  # longest that the import of a package may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Least of each, by device."""

    memory_gb: float
    disk_gb: float
    shared_memory_gb: float
    open_files: int


LIMITS = {
    "cpu": Limits(memory_gb=8, disk_gb=2, shared_memory_gb=1, open_files=1024),
    "cuda": Limits(memory_gb=32, disk_gb=20, shared_memory_gb=8, open_files=8192),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    name: str
    memory_bytes: float
    free_bytes: float
    capability: tuple[int, int]


def look(device: str, *, gpus: int, output: Path) -> dict[str, Verdict]:
    """Every check of this machine, by name, in the order in which a reader mends them."""
    limits, has_gpus = LIMITS[device], device == "cuda"
    shared_bytes = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    shm = "docker: --shm-size=64g; Kubernetes: an emptyDir with medium: Memory; Slurm: the container's option"
    return {
        VERSIONS: _versions(),
        GPUS: judge_gpus(*_ask_torch(), wanted=gpus) if has_gpus else skipped("needs a GPU"),
        "flash attention": _flash_attention() if has_gpus else skipped("needs a GPU"),
        "CUDA IPC": judge_ipc(*_python(_SHARE)) if has_gpus else skipped("needs a GPU"),
        "host memory": room(psutil.virtual_memory().available, limits.memory_gb, "available", "end other processes"),
        "disk": room(shutil.disk_usage(output).free, limits.disk_gb, "free", "set --output to a larger disk"),
        # Of Ray's objects, NCCL and vLLM's queues.
        "shared memory": room(shared_bytes, limits.shared_memory_gb, f"in {SHARED_MEMORY}", shm),
        "ulimits": judge_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0], limits.open_files),
    }


def _versions() -> Verdict:
    try:
        return passed(check_versions())
    except ConfigError as error:
        return failed(str(error), "install the versions that it names, in a new environment")


def judge_gpus(found: Sequence[Gpu], error: str, *, wanted: int) -> Verdict:
    """Number, kind and free memory.

    Args:
        error: torch's own, when it looked for GPUs.
    """
    if error:
        return failed(
            f"torch finds no GPU: {error}",
            "install NVIDIA's driver and verl[vllm]==0.9.1 in a new environment; start a container with --gpus all; "
            "check CUDA_VISIBLE_DEVICES; on a machine without GPUs, set --device cpu",
        )
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


def _flash_attention() -> Verdict:
    """verl's trainer takes attention from the package `flash_attn`, or the kernels that `kernels` fetches; log-probs
    from the former, or its own fused kernels, or else it computes them token by token.
    """
    if find_spec("flash_attn") is not None:
        said, error = _python(
            "import flash_attn, flash_attn.ops.triton.cross_entropy; print('flash-attn', flash_attn.__version__)"
        )
        build = (
            "build it for this torch; run: pip install --no-build-isolation --no-cache-dir --force-reinstall "
            "--no-deps flash-attn==2.8.3"
        )
        return first_failure((not error, f"cannot be imported: {error}", build), else_found=said.strip())
    fused = "actor_rollout_ref.model.use_fused_kernels=True"
    install = (
        "run: pip install --no-build-isolation flash-attn==2.8.3; or train with "
        f"++actor_rollout_ref.model.override_config.attn_implementation=sdpa, which computes all pairs of a micro "
        f"batch's tokens, and {fused}: {LOOP}"
    )
    if find_spec("kernels") is None:
        return failed("not installed, and verl's trainer uses it", install)
    return passed(f"kernels, which fetches attention from a hub; train with {fused}: {LOOP}")


def judge_ipc(said: str, error: str) -> Verdict:
    """Whether another process has read a GPU's memory through a handle, as an engine reads weights."""
    needed = (
        not error and said.strip() == "shared",
        f"another process cannot read a GPU's memory: {error or said.strip() or 'no answer'}",
        "weights reach engines that share the trainer's GPUs through CUDA IPC alone: use whole GPUs in place of MIG "
        "instances, Linux in place of WSL, a container started with --ipc=host; or engines in the trainer's container",
    )
    return first_failure(needed, else_found="64 MiB read by another process")


def room(found_bytes: float, least_gb: float, where: str, remedy: str) -> Verdict:
    said = f"{found_bytes / GB:.1f} GB {where}"
    enough = (found_bytes >= least_gb * GB, said, f"needs {least_gb:g} GB: {remedy}")
    return first_failure(enough, else_found=said)


def judge_files(limit: int, least: int) -> Verdict:
    """The limit on open files of this process; below 0: none."""
    remedy = f"run: ulimit -n {least}; in docker set --ulimit, with Slurm --propagate=NONE"
    return first_failure(
        (limit < 0 or limit >= least, f"at most {limit} open files", remedy),
        else_found=f"{'any number of' if limit < 0 else limit} open files",
    )


# Prints a line for each GPU: name, memory, free memory, compute capability.
_ASK_TORCH = """
import torch
torch.cuda.init()
for index in range(torch.cuda.device_count()):
    free, total = torch.cuda.mem_get_info(index)
    major, minor = torch.cuda.get_device_capability(index)
    print(torch.cuda.get_device_name(index), total, free, major, minor, sep="|")
"""


# Prints "shared" if a process of its own reads what this one has written to the GPU.
_SHARE = """
import pickle, subprocess, sys
import torch
from torch.multiprocessing.reductions import reduce_tensor
if len(sys.argv) > 1:
    make, arguments = pickle.loads(bytes.fromhex(sys.argv[1]))
    print("shared" if make(*arguments).long().sum().item() == 2**26 else "other values")
else:
    tensor = torch.ones(2**26, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    handle = pickle.dumps(reduce_tensor(tensor)).hex()
    program = sys.orig_argv[sys.orig_argv.index("-c") + 1]
    done = subprocess.run([sys.executable, "-c", program, handle], capture_output=True, text=True, timeout=60)
    print(done.stdout, end="")
    sys.stderr.write(done.stderr)
    sys.exit(done.returncode)
"""


def _ask_torch() -> tuple[tuple[Gpu, ...], str]:
    """GPUs, and torch's error. Nothing of CUDA stays in this process."""
    said, error = _python(_ASK_TORCH)
    gpus = []
    for line in said.splitlines():
        name, total, free, major, minor = line.split("|")
        gpus.append(Gpu(name=name, memory_bytes=int(total), free_bytes=int(free), capability=(int(major), int(minor))))
    return tuple(gpus), error


def _python(program: str) -> tuple[str, str]:
    """What a process of its own prints, and the last line of its error."""
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=_IMPORT_S)
    except subprocess.TimeoutExpired:
        return "", f"not done after {_IMPORT_S:.0f} s"
    lines = done.stderr.strip().splitlines()
    return done.stdout, "" if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}")
