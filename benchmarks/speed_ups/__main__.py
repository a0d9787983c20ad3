"""Published speed-ups, planned: `python -m benchmarks.speed_ups [--output outputs/speed_ups]`; see `run.py`."""

import argparse
from pathlib import Path

from recipe.async_dapo_lab.command_line import path

from .run import run

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--output", type=path, default=Path("outputs", "speed_ups"), help="folder of runs.csv")

if __name__ == "__main__":
    run(parser.parse_args().output / "runs.csv")
