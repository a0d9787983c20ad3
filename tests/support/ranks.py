"""Training ranks: processes of their own that meet in a file, with all that this one has imported."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

Check = Callable[[Path], None]


def run_ranks(check: Check, folder: Path, *, ranks: int = 1) -> None:
    """Call `check(folder)` in each rank, before verl makes their process group.

    A process that is not forked would import verl again, which takes longer than any of these checks.

    Raises:
        torch.multiprocessing.ProcessRaisedException: with the traceback of the first rank that fails.
    """
    torch.multiprocessing.start_processes(_rank, args=(ranks, check, folder), nprocs=ranks, start_method="fork")


def _rank(rank: int, ranks: int, check: Check, folder: Path) -> None:
    warnings.simplefilter("ignore")  # errors in the process that runs the tests
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "DIST_INIT_METHOD": f"file://{folder}/meeting"}
    os.environ |= {"MASTER_ADDR": "unused", "MASTER_PORT": "0"}
    torch.set_num_threads(1)
    check(folder)
    dist.destroy_process_group()


def nested(rows: list[Tensor]) -> Tensor:
    """Rows of any lengths, as verl's engines take them."""
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
