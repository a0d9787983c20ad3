"""What drafts and an FP8 cache would save in every setting of the grid of `benchmarks.defaults`; simulated, never run:

    python -m benchmarks.drafts [--output outputs/drafts] [--largest 128]

Simulates what `grid.csv` in the folder does not have yet, the rows that targets are set for first; a row takes seconds
to minutes. Then prints how the steps compare with those of `assets/defaults`, which have neither.
"""

import argparse
from pathlib import Path

from benchmarks.defaults.settings import SETTINGS
from benchmarks.support.tables import markdown

from .grid import run, summary

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--output", type=Path, default=Path("outputs", "drafts"), help="of grid.csv")
parser.add_argument("--largest", type=int, default=512, help="settings with more servers are left out")

if __name__ == "__main__":
    options = parser.parse_args()
    run(options.output, [one for one in SETTINGS if one.servers <= options.largest])
    print(markdown(summary(options.output)))
