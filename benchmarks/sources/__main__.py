"""What early stopping does to a mix of data sets, and what shares by source make of it:

    python -m benchmarks.sources [--steps 200] [--output outputs/sources]
    python -m benchmarks.sources --fuzz 1000

Simulates what `shares.csv` in the folder does not have yet, a minute a row, then draws. With `--fuzz` it plays random
options instead, and checks every account.
"""

import argparse
from pathlib import Path

from rich.console import Console

from benchmarks.support.needed import need
from recipe.async_dapo_lab.command_line import path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, help="of a row [as in shares.csv]")
parser.add_argument("--fuzz", type=int, metavar="RUNS", help="of random options, to fuzz.csv")
parser.add_argument("--output", type=path, default=Path("outputs", "sources"), help="of the files")

if __name__ == "__main__":
    options = parser.parse_args()
    need("shares", "sources")
    if options.fuzz:
        from .fuzz import fuzz

        fuzz(options.output, runs=options.fuzz)
    else:
        from .draw import draw
        from .run import STEPS, run

        run(options.output, steps=options.steps or STEPS, say=Console().print)
        draw(options.output)
