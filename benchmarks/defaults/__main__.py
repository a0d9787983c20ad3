"""The defaults against every baseline and every hand-tuned row, in every setting of the grid:

    python -m benchmarks.defaults [--jobs 2] [--output outputs/defaults] [--largest 128]
    python -m benchmarks.defaults --settings "8 x H200, B=64" --systems "verl colocate_async" default
    python -m benchmarks.defaults --grid one_update --systems "verl sync" "verl colocate" "default"

Simulates what `systems.csv` in the folder does not have yet, then draws; see `draw.py`. A row takes seconds to minutes,
and is in the file as soon as it is there.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from recipe.async_dapo_lab.command_line import path
from recipe.async_dapo_lab.quickstart.supervision import exit_on_signals

from .draw import draw
from .run import run
from .settings import GRIDS, SETTINGS

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--jobs", type=int, default=1, help="processes")
parser.add_argument("--output", type=path, default=Path("outputs", "defaults"), help="of systems.csv and what is drawn")
parser.add_argument("--grid", choices=GRIDS, default="", help="results are in a folder of that name")
parser.add_argument("--largest", type=int, help="settings with more servers are left out")
BEGINS = "those whose names begin with one of these; default: all"
parser.add_argument("--settings", nargs="+", default=[""], metavar="TEXT", help=BEGINS)
parser.add_argument("--systems", nargs="+", default=[""], metavar="TEXT", help=BEGINS)

if __name__ == "__main__":
    options = parser.parse_args()
    exit_on_signals()
    console = Console()
    settings = [replace(one, grid=options.grid) for one in SETTINGS if one.servers <= (options.largest or one.servers)]
    settings = [one for one in settings if str(one).startswith(tuple(options.settings))]
    folder = options.output / options.grid
    run(folder, settings, systems=options.systems, jobs=options.jobs, say=console.print)
    console.print(draw(folder))
