"""What needs two GPUs: collectives between ranks. On a CPU, two processes over gloo.

python -m recipe.async_dapo_lab.gpu_check.several_gpus BACKEND BYTES FILE
"""

import datetime
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from .supervised import run_supervised
from .verdicts import Verdict, failed, passed

RANKS = 2
BYTES = 256 << 20
_TIMEOUT_S = 120.0


def all_reduce(
    backend: str, *, folder: Path, environment: Mapping[str, str], size_bytes: int = BYTES
) -> tuple[float | None, str]:
    """Seconds of a sum over both ranks, None if it is not right; and how the ranks failed, if they did."""
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "all_reduce.json"
    for stale in (result, _store(result)):
        stale.unlink(missing_ok=True)
    command = [sys.executable, "-m", __name__, backend, str(size_bytes), str(result)]
    ended = run_supervised(command, environment=environment, log=folder / "all_reduce.log", timeout_s=_TIMEOUT_S)
    said = json.loads(result.read_text()) if result.exists() else {}
    return said.get("seconds") if said.get("is_right") else None, ended


def judge_all_reduce(seconds: float | None, ended: str, *, size_bytes: int = BYTES) -> Verdict:
    if ended or seconds is None:
        return failed(
            ended or "the sum is wrong",
            "set NCCL_DEBUG=INFO and read its log; try NCCL_P2P_DISABLE=1 on virtual machines, NCCL_SOCKET_IFNAME for "
            "another network, and more shared memory",
        )
    return passed(f"{size_bytes >> 20} MiB over {RANKS} ranks, {size_bytes / seconds / 1e9:.1f} GB/s")


def _store(result: Path) -> Path:
    return result.with_suffix(".store")


def _rank(rank: int, backend: str, size_bytes: int, result: Path) -> None:
    """One rank: sums a tensor over all, twice; the first one notes the seconds of the second time."""
    import torch
    from torch import distributed

    device = torch.device("cpu") if backend == "gloo" else torch.device("cuda", rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        backend,
        init_method=f"file://{_store(result)}",
        rank=rank,
        world_size=RANKS,
        timeout=datetime.timedelta(seconds=_TIMEOUT_S / 2),
    )
    for _ in range(2):
        tensor = torch.full((size_bytes // 4,), float(rank + 1), device=device)
        began_s = time.perf_counter()
        distributed.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began_s
    distributed.destroy_process_group()
    if rank == 0:
        is_right = bool((tensor == RANKS * (RANKS + 1) / 2).all())
        result.write_text(json.dumps({"seconds": seconds, "is_right": is_right}))


if __name__ == "__main__":
    from torch.multiprocessing import spawn

    spawn(_rank, (sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])), nprocs=RANKS)
