"""Seconds of a trained token against the off-policy share; simulated, never run: python -m benchmarks.frontier

Takes the rows of `assets/defaults` (verl's three modes, APRIL, CoPRIS, this recipe with and without pools of its own)
and simulates those that are missing for a frontier, with drafts too, in five settings: `runs.csv` in the folder, which
goes on where it ends. Then draws `frontier.png` and prints who is fastest at which share.
"""

import argparse
from pathlib import Path

from benchmarks.defaults.settings import SETTINGS
from benchmarks.support.tables import markdown

from .draw import draw
from .run import CLUSTERS, run

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--clusters", nargs="+", choices=CLUSTERS, default=list(CLUSTERS))
parser.add_argument("--output", type=Path, default=Path("outputs", "frontier"), help="of runs.csv and what is drawn")

if __name__ == "__main__":
    options = parser.parse_args()
    for cluster in options.clusters:
        run(options.output, next(one for one in SETTINGS if str(one).startswith(cluster)))
    print(markdown(draw(options.output)))
