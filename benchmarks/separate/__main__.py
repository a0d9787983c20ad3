"""This recipe with engines on GPUs of their own, against verl's separate_async and against trainer and engines on the
same GPUs; planned, never run, and the recipe cannot be run so yet:

    python -m benchmarks.separate [--output outputs/separate] [--settings "8 x H200, B=64"]

Simulates what `runs.csv` in the folder does not have yet; a row takes seconds to minutes. The rows of the other systems
are those of `assets/defaults`. Prints the table.
"""

import argparse
from pathlib import Path

from benchmarks.defaults.settings import SETTINGS
from benchmarks.support.tables import markdown

from .run import LARGEST, run
from .summary import summary

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--output", type=Path, default=Path("outputs", "separate"), help="of runs.csv")
parser.add_argument("--settings", nargs="+", default=[""], help="how the names of those begin that are simulated")

if __name__ == "__main__":
    options = parser.parse_args()
    for setting in SETTINGS:
        if 1 < setting.servers <= LARGEST and str(setting).startswith(tuple(options.settings)):
            run(options.output, setting)
    print(markdown(summary(options.output)))
