"""A long run on emulated engines that is killed at random moments, part by part, and started again each time."""

import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.support.runs_file import RunsFile

from .cells import KILL, MATRIX, Stack
from .chain import Chain
from .commands import command_of
from .growth import Growth
from .life import Life


def soak(output: Path, logs: Path, *, minutes: float, kills: int, seed: int) -> None:
    """Writes `soak.csv`, a row a kill, and `soak_growth.csv`, a row a part of the run."""
    rng = random.Random(seed)
    killed = [cell for cell in MATRIX[Stack.EMULATED] if cell.how == KILL and not cell.when.is_once]
    cells = rng.choices(killed, k=kills)
    times = iter(sorted(rng.uniform(0, 60 * minutes) for _ in cells))
    runs, growth, began = RunsFile(output / "soak.csv"), Growth(), time.monotonic()

    def wait(life: Life) -> None:
        due = began + next(times)
        while time.monotonic() < due and not life.has_ended:
            life.look()
            growth.look(life.processes)

    def add(row: Mapping[str, Any]) -> None:
        runs.add({"seed": seed, "minutes": minutes, "at_s": round(time.monotonic() - began), **row})
        print(dict(row), flush=True)
        growth.table().to_csv(output / "soak_growth.csv", index=False)

    own = Path(tempfile.mkdtemp(prefix="soak-", dir=logs))
    Chain(Stack.EMULATED, command_of(Stack.EMULATED, logs), own, seed=seed, add=add, before=wait).play(cells)
    print(growth.table().to_string(), flush=True)
