"""A fault at every moment of a run, and what becomes of it.

python -m benchmarks.faults
python -m benchmarks.faults --only emulated --limit 6

A run is struck, ends with the cause named or goes on, is started again, and is struck again; every prompt is accounted
for over all of it. A row is written as soon as the run has finished a step after its strike; the command goes on where
the file ends. Three stacks run at a time; those of two nodes need root, as they cut a network between two namespaces.
Writes `runs.csv`; the project's own runs are in `assets/faults`.
"""

import argparse
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo_lab.command_line import path
from recipe.async_dapo_lab.quickstart.supervision import exit_on_signals

from .cells import MATRIX, Cell, Stack
from .chain import Chain
from .commands import command_of
from .life import Life
from .two_nodes import TwoNodeLife, may_cut

AT_A_TIME = 3  # stacks


def play(stack: Stack, cells: list[Cell], runs: Path, logs: Path, *, seed: int) -> None:
    """Those cells that have no row yet."""
    exit_on_signals()
    file = RunsFile(runs)
    left = [cell for cell in cells if not file.has(**cell.name, seed=seed)]
    if left:
        own = Path(tempfile.mkdtemp(prefix=f"{stack}-", dir=logs))
        kind = TwoNodeLife if stack.has_two_nodes else Life
        Chain(stack, command_of(stack, logs), own, seed=seed, add=partial(_add, file, seed), life=kind).play(left)
        shutil.rmtree(own / "checkpoints", ignore_errors=True)


def _add(file: RunsFile, seed: int, row: Mapping[str, Any]) -> None:
    file.add({"seed": seed, **row})
    print(dict(row), flush=True)


def main() -> None:
    exit_on_signals()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=Stack, choices=list(Stack), help="one stack; default: all")
    parser.add_argument("--limit", type=int, help="so many cells of each stack; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=path, default=Path("outputs", "faults"))
    parser.add_argument("--logs", type=path, default=Path("outputs", "faults"), help="folder of the runs' logs")
    options = parser.parse_args()
    output, logs = options.output.absolute(), options.logs.absolute()
    for folder in (output, logs):
        folder.mkdir(parents=True, exist_ok=True)
    stacks = [options.only] if options.only else [stack for stack in Stack if not stack.has_two_nodes or may_cut()]
    if len(stacks) < len(Stack) and not options.only:
        print("No namespaces here, which need root: the cells of two nodes are left out.")
    with ProcessPoolExecutor(AT_A_TIME, mp_context=get_context("spawn")) as pool:  # each adopts its own orphans
        played = [
            pool.submit(play, stack, MATRIX[stack][: options.limit], output / "runs.csv", logs, seed=options.seed)
            for stack in stacks
        ]
        try:
            for each in played:
                each.result()
        except (KeyboardInterrupt, SystemExit):
            for process in active_children():
                process.terminate()
            raise
