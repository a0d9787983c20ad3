"""Systems that have started up take turns on one GPU."""

import time
from pathlib import Path

TURN = "GPU_DAY_TURN"  # names a file, which is there once it is this process's turn
_LOOK_S = 0.1


def waiting(turn: Path) -> Path:
    """A file beside it, by which a process says that it waits."""
    return turn.with_suffix(".waits")


def wait_for(turn: Path) -> None:
    if not turn.exists():
        waiting(turn).touch()
    while not turn.exists():
        time.sleep(_LOOK_S)
