"""The machine and its packages: looked at once, then judged.

Limits are those below which a run of verl, Ray and vLLM is known to end with an error, or to crawl. What a run of one's
own needs beside that depends on its model.
"""

import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from ...async_dapo.option_values import ConfigError
from ...async_dapo.verl_version import check_versions
from .verdicts import Verdict, failed, passed, skipped

GB = 1e9
SHARED_MEMORY = Path("/dev/shm")
LEAST_DRIVER = {12: 525, 13: 580}  # NVIDIA's, by the major version of CUDA that torch was built for
LEAST_CAPABILITY = (8, 0)  # bf16 and flash attention
LEAST_FREE_SHARE = 0.9  # of a GPU's memory
LEAST_PORTS = 1000  # for connections; Ray's workers take two each
MOST_SKEW_S = 5.0  # between this machine's clock and that of the output's file system
VERSIONS, DRIVER, GPUS = NEEDED = ("versions", "driver and CUDA", "GPUs")  # without these no other theme can run
_IMPORT_S = 180.0  # longest that the import of a package may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Least of each, by device."""

    memory_bytes: float
    disk_bytes: float
    shared_memory_bytes: float
    open_files: int
    processes: int


LIMITS = {
    "cpu": Limits(memory_bytes=8 * GB, disk_bytes=2 * GB, shared_memory_bytes=GB, open_files=1024, processes=2048),
    "cuda": Limits(
        memory_bytes=32 * GB, disk_bytes=20 * GB, shared_memory_bytes=8 * GB, open_files=8192, processes=8192
    ),
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
    processes: int
    ports: int  # that connections may take
    port_error: str  # of opening one on this machine's loopback address
    skew_s: float  # of the output's file system from this machine's clock
    year: int

    @property
    def limits(self) -> Limits:
        return LIMITS[self.device]

    @property
    def attention(self) -> str:
        """transformers' name of the trainer's."""
        has_package = self.flash_attention.startswith("flash-attn") and not self.flash_attention_error
        return "flash_attention_2" if has_package else "sdpa"


def judge_versions(machine: Machine) -> Verdict:
    if machine.versions_error:
        return failed(machine.versions_error, "install the versions that the message names, in a new environment")
    return passed(f"{machine.versions}, torch=={machine.torch}")


def judge_driver(machine: Machine) -> Verdict:
    if machine.device == "cpu":
        return skipped("needs a GPU")
    if not machine.driver:
        return failed(
            "nvidia-smi does not run",
            "install NVIDIA's driver; start a container with --gpus all; on a machine without GPUs, set --device cpu",
        )
    if not machine.torch_cuda:
        return failed(
            f"torch=={machine.torch} is a build without CUDA",
            "run: pip install 'verl[vllm]==0.9.1' in a new environment",
        )
    cuda, driver = int(machine.torch_cuda.split(".")[0]), int(machine.driver.split(".")[0])
    least = LEAST_DRIVER.get(cuda, max(LEAST_DRIVER.values()))
    if driver < least:
        return failed(
            f"driver {machine.driver} is too old for CUDA {machine.torch_cuda}",
            f"install driver {least} or newer, or a torch for an older CUDA",
        )
    if machine.gpu_error:
        return failed(
            f"torch finds no GPU: {machine.gpu_error}",
            "restart after an update of the driver, so that its parts match; check CUDA_VISIBLE_DEVICES",
        )
    return passed(f"driver {machine.driver}, CUDA {machine.torch_cuda}")


def judge_gpus(machine: Machine, *, wanted: int) -> Verdict:
    """Number, kind and free memory."""
    if machine.device == "cpu":
        return skipped("needs a GPU")
    if len(machine.gpus) < wanted:
        return failed(
            f"{len(machine.gpus)} of {wanted} GPUs are visible",
            "set --gpus to fewer, or make more visible: CUDA_VISIBLE_DEVICES, or the container's --gpus",
        )
    for number, gpu in enumerate(machine.gpus[:wanted]):
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
    names = {gpu.name for gpu in machine.gpus[:wanted]}
    return passed(f"{wanted} x {', '.join(sorted(names))}, {machine.gpus[0].memory_bytes / GB:.0f} GB")


def judge_flash_attention(machine: Machine) -> Verdict:
    if machine.device == "cpu":
        return skipped("needs a GPU")
    if machine.flash_attention_error:
        return failed(
            f"cannot be imported: {machine.flash_attention_error}",
            "build it for this torch; run: pip install --no-build-isolation --no-cache-dir --force-reinstall "
            "--no-deps flash-attn==2.8.3",
        )
    if not machine.flash_attention:
        return failed(
            "not installed, and verl's trainer uses it",
            "run: pip install --no-build-isolation flash-attn==2.8.3; or train with "
            "++actor_rollout_ref.model.override_config.attn_implementation=sdpa and "
            "actor_rollout_ref.model.use_remove_padding=False",
        )
    return passed(machine.flash_attention)


def _judge_room(found: float, least: float, *, of: str, remedy: str) -> Verdict:
    said = f"{found / GB:.1f} GB {of}"
    return passed(said) if found >= least else failed(said, f"needs {least / GB:.0f} GB: {remedy}")


def judge_limits(machine: Machine) -> Verdict:
    for name, found, least, flag in (
        ("open files", machine.open_files, machine.limits.open_files, "-n"),
        ("processes", machine.processes, machine.limits.processes, "-u"),
    ):
        if 0 <= found < least:
            return failed(
                f"at most {found} {name}",
                f"run: ulimit {flag} {least}; in docker set --ulimit, with Slurm --propagate=NONE",
            )
    return passed(f"{_count(machine.open_files)} open files, {_count(machine.processes)} processes")


def _count(limit: int) -> str:
    return "no limit on" if limit < 0 else str(limit)


def judge_ports(machine: Machine) -> Verdict:
    if machine.port_error:
        return failed(
            f"no port can be opened on 127.0.0.1: {machine.port_error}", "give this container a loopback device"
        )
    if machine.ports < LEAST_PORTS:
        return failed(
            f"{machine.ports} ports for connections",
            f"needs {LEAST_PORTS}; run: sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
        )
    return passed(f"{machine.ports} ports for connections, loopback works")


def judge_clock(machine: Machine) -> Verdict:
    if machine.year < 2025:
        return failed(f"this machine's clock says {machine.year}", "set it; certificates and checkpoints rely on it")
    if abs(machine.skew_s) > MOST_SKEW_S:
        return failed(
            f"the disk of --output is {machine.skew_s:+.0f} s off this machine's clock",
            "run NTP on this machine and on the disk's server",
        )
    return passed(f"within {abs(machine.skew_s):.1f} s of the clock of the output's disk")


def judgements(machine: Machine, *, gpus: int) -> dict[str, Verdict]:
    """Every check of the machine, by name, in the order in which a reader mends them."""
    limits = machine.limits
    return {
        VERSIONS: judge_versions(machine),
        DRIVER: judge_driver(machine),
        GPUS: judge_gpus(machine, wanted=gpus),
        "flash attention": judge_flash_attention(machine),
        "host memory": _judge_room(
            machine.memory_bytes,
            limits.memory_bytes,
            of="of host memory available",
            remedy="end other processes, or raise the container's limit",
        ),
        "disk": _judge_room(
            machine.disk_bytes, limits.disk_bytes, of="free for the output", remedy="set --output to a larger disk"
        ),
        # Of Ray's objects, NCCL, vLLM's queues, and weights where CUDA IPC cannot be used.
        "shared memory": _judge_room(
            machine.shared_memory_bytes,
            limits.shared_memory_bytes,
            of=f"free in {SHARED_MEMORY}",
            remedy=f"a container has 64 MB by itself; docker: --shm-size=64g; Kubernetes: an emptyDir with medium: "
            f"Memory at {SHARED_MEMORY}; Slurm: the container's option",
        ),
        "ulimits": judge_limits(machine),
        "ports": judge_ports(machine),
        "clock": judge_clock(machine),
    }


def probe(device: str, *, output: Path) -> Machine:
    """Look at this machine. Nothing of it stays: CUDA is asked in a process of its own."""
    versions, versions_error = _versions()
    wants_gpu = device == "cuda"
    torch_version, torch_cuda, gpu_error, gpus = _torch(asks_for_gpus=wants_gpu)
    flash, flash_error = _flash_attention() if wants_gpu else ("", "")
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    return Machine(
        device=device,
        versions=versions,
        versions_error=versions_error,
        torch=torch_version,
        torch_cuda=torch_cuda,
        driver=_driver() if wants_gpu else "",
        gpus=gpus,
        gpu_error=gpu_error,
        flash_attention=flash,
        flash_attention_error=flash_error,
        memory_bytes=min(psutil.virtual_memory().available, _left_to_the_container()),
        disk_bytes=shutil.disk_usage(output).free,
        shared_memory_bytes=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[0],
        ports=last - first + 1,
        port_error=_port_error(),
        skew_s=_skew_s(output),
        year=time.gmtime().tm_year,
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


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = re.match(r"\d+\.[\d.]+", done.stdout)
    return found[0] if found else ""


def _left_to_the_container() -> float:
    """Memory that the control group may still take [bytes]."""
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return float("inf")
    return float("inf") if limit == "max" else float(limit) - float(used)


def _port_error() -> str:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        return str(error)
    return ""


def _skew_s(folder: Path) -> float:
    file = folder / f".clock-{os.getpid()}"
    try:
        file.touch()
        return file.stat().st_mtime - time.time()
    finally:
        file.unlink(missing_ok=True)
