"""Training steps where the engines are the bottleneck, rehearsed: verl's modes, this recipe, and the bound.

python -m benchmarks.engine_bound --settings "8 servers, B=64, n=8, 16K" --steps 7

Every system runs its real code on emulated engines (docs/plan_check_rehearse.md), with the same prompts and responses.
A row has the planner's prediction for the same system beside it. Writes `runs.csv`, and goes on where it ends;
`python -m benchmarks.engine_bound.draw FOLDER` draws the figure and prints the table, `python -m
benchmarks.engine_bound.plan FOLDER` asks the planner anew. With several `--speedups` the
rows say whether the compression of time matters. The project's own runs are in `assets/engine_bound`.
"""

import argparse
from functools import partial
from pathlib import Path

from benchmarks.engine_bound.systems import SETTINGS, WARMUP, Row, planned, rows
from benchmarks.support.rehearsed import measure, overrides_of
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo_lab.plan.scenario import Scenario


def run(
    scenario: Scenario, row: Row, folder: Path, *, steps: int, warmup: int, speedup: float
) -> dict[str, float | str]:
    """One system's columns."""
    overrides = [*overrides_of(scenario), *row.overrides]
    columns = measure(overrides, folder, steps=steps, warmup=warmup, speedup=speedup)
    return columns | planned(scenario, row, steps=steps - warmup, warmup=warmup)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--systems", nargs="+", help="default: all")
    parser.add_argument("--speedups", type=float, nargs="+", help="default: the setting's own")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=WARMUP)
    parser.add_argument("--output", type=Path, default=Path("outputs", "engine_bound"))
    parser.add_argument("--runs", type=Path, default=Path("outputs", "engine_bound"), help="folder of the runs' logs")
    options = parser.parse_args()
    runs, logs = RunsFile(options.output / "runs.csv"), options.runs.absolute()
    for repetition in range(options.repetitions):
        for setting in (SETTINGS[name] for name in options.settings):
            scenario = setting.scenario()
            table = rows(scenario)
            for name in options.systems or list(table):
                for speedup in options.speedups or [setting.speedup]:
                    cell = {"setting": setting.name, "system": name, "speedup": f"{speedup:g}"}
                    cell |= {"repetition": repetition}
                    one = partial(run, scenario, table[name], logs / runs.folder_name(cell))
                    runs.measure(cell, partial(one, steps=options.steps, warmup=options.warmup, speedup=speedup))
