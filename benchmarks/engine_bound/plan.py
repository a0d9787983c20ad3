"""What the planner predicts for the rows of `runs.csv` in a folder, or of the project's own runs, anew.

python -m benchmarks.engine_bound.plan [FOLDER]

Nothing is rehearsed for it. Pools and splits are those that the planner finds best today.
"""

import sys
from pathlib import Path

import pandas as pd

from benchmarks.engine_bound.summary import FOLDER
from benchmarks.engine_bound.systems import SETTINGS, WARMUP, planned, rows


def plan(runs: pd.DataFrame) -> pd.DataFrame:
    """The same rows with new `planned_` columns."""
    parts = []
    for setting, of_setting in runs.groupby("setting", sort=False):
        scenario = SETTINGS[setting].scenario()
        table = rows(scenario)
        for (system, steps), some in of_setting.groupby(["system", "steps"], sort=False):
            parts.append(some.assign(**planned(scenario, table[system], steps=int(steps), warmup=WARMUP)))
    return pd.concat(parts).sort_index()


if __name__ == "__main__":
    file = (Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER) / "runs.csv"
    plan(pd.read_csv(file, dtype=str, keep_default_na=False)).to_csv(file, index=False)
