"""What early stopping does to a mix of data sets, and what shares by source make of it:

    python -m benchmarks.sources [--steps 200] [--output outputs/sources]

Simulates what `shares.csv` in the folder does not have yet, a minute a row, then draws.
"""

import argparse
from pathlib import Path

from rich.console import Console

from benchmarks.support.needed import need

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, help="of a row [as in shares.csv]")
parser.add_argument("--output", type=Path, default=Path("outputs", "sources"), help="of shares.csv and what is drawn")

if __name__ == "__main__":
    options = parser.parse_args()
    need("shares", "sources")
    from .draw import draw
    from .run import STEPS, run

    run(options.output, steps=options.steps or STEPS, say=Console().print)
    draw(options.output)
