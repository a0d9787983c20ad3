"""What needs two GPUs: collectives between ranks. On a CPU, two processes over gloo."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from .supervised import last_words
from .verdicts import Verdict, failed, passed

RANKS = 2
BYTES = 256 << 20
_TIMEOUT_S = 120.0

# One rank: sums a tensor over all, twice, and prints the seconds of the second time and whether the sum is right.
_RANK = """
import datetime, sys, time
import torch
from torch import distributed
rank, ranks, count, backend, store = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
device = torch.device("cpu") if backend == "gloo" else torch.device("cuda", rank)
if device.type == "cuda":
    torch.cuda.set_device(device)
distributed.init_process_group(
    backend, init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60)
)
for _ in range(2):
    tensor = torch.full((count,), float(rank + 1), device=device)
    began_s = time.perf_counter()
    distributed.all_reduce(tensor)
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began_s
distributed.destroy_process_group()
print(seconds, bool((tensor == ranks * (ranks + 1) / 2).all()))
"""


def all_reduce(
    device: str, *, folder: Path, environment: Mapping[str, str], size_bytes: int = BYTES
) -> tuple[list[str], str]:
    """What each rank printed, and how those ended that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / f"store-{os.getpid()}"
    backend = "gloo" if device == "cpu" else "nccl"
    ranks = []
    for rank in range(RANKS):
        arguments = [str(rank), str(RANKS), str(size_bytes // 4), backend, str(store)]
        log = (folder / f"rank-{rank}.log").open("w")
        command = [sys.executable, "-c", _RANK, *arguments]
        ranks.append(subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, stderr=log, text=True))
        log.close()
    deadline = time.monotonic() + _TIMEOUT_S
    said, ended = [], ""
    try:
        for rank, process in enumerate(ranks):
            try:
                said.append(process.communicate(timeout=max(0.0, deadline - time.monotonic()))[0].strip())
            except subprocess.TimeoutExpired:
                ended = f"rank {rank} is not done after {_TIMEOUT_S:.0f} s"
            if process.returncode:
                ended = ended or f"rank {rank}: {last_words(folder / f'rank-{rank}.log') or process.returncode}"
    finally:
        for process in ranks:
            process.kill()
            process.wait()
        store.unlink(missing_ok=True)
    return said, ended


def judge_all_reduce(said: list[str], ended: str, *, backend: str, size_bytes: int = BYTES) -> Verdict:
    """
    Args:
        said: of each rank, its seconds and whether its sum was right.
    """
    remedy = (
        "set NCCL_DEBUG=INFO; NCCL_P2P_DISABLE=1 where GPUs reach each other through a virtual machine's bus, "
        "NCCL_SOCKET_IFNAME where the wrong network is chosen; shared memory must suffice"
    )
    if ended or len(said) < RANKS:
        return failed(f"{backend}: {ended or 'a rank said nothing'}", remedy)
    seconds, right = zip(*(line.split() for line in said), strict=True)
    if not all(word == "True" for word in right):
        return failed(f"{backend}: a wrong sum", remedy)
    slowest = max(map(float, seconds))
    return passed(f"{backend}: {size_bytes >> 20} MiB over {RANKS} ranks, {size_bytes / slowest / 1e9:.1f} GB/s")
