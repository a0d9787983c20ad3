"""verl's published job, simulated: `python -m benchmarks.verl_job [--output outputs/verl_job]`; see `run.py`."""

import argparse
from pathlib import Path

from recipe.async_dapo_lab.command_line import path

from .run import run

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--output", type=path, default=Path("outputs", "verl_job"), help="folder of runs.csv")

if __name__ == "__main__":
    run(parser.parse_args().output / "runs.csv")
