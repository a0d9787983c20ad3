"""A command that takes any options, waits for its turn on a GPU and notes when it had it."""

import os
import time
from pathlib import Path

from benchmarks.gpu_day.turns import TURN, wait_for

if __name__ == "__main__":
    turn = Path(os.environ[TURN])
    wait_for(turn)
    began_s = time.monotonic()
    time.sleep(0.5)
    turn.with_suffix(".had").write_text(f"{began_s} {time.monotonic()}")
