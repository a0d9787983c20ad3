"""The defaults against every baseline and every hand-tuned row, in every setting of the grid:

    python -m benchmarks.defaults [--jobs 2] [--folder outputs/defaults]

Simulates what `systems.csv` in the folder does not have yet, then draws; see `draw.py`.
"""

import argparse
from pathlib import Path

from rich.console import Console

from .draw import draw
from .run import run

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--jobs", type=int, default=1, help="processes")
parser.add_argument("--folder", type=Path, default=Path("outputs/defaults"), help="of systems.csv and of what is drawn")

if __name__ == "__main__":
    options = parser.parse_args()
    console = Console()
    run(options.folder, jobs=options.jobs, say=console.print)
    console.print(draw(options.folder))
