"""What a quarter of an hour on one GPU has shown: its files go to `assets/gpu/`, its figures are printed.

python -m benchmarks.gpu_day.read RESULTS

Prints each part's end, what `gpu_check` has found beside the machine, each system's step over that of verl's mode, and
the speed of an engine, with which the planner plans: `--calibrate assets/gpu/calibration.jsonl`.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from recipe.async_dapo_lab.command_line import path
from recipe.async_dapo_lab.gpu_check.machine import THEME
from recipe.async_dapo_lab.gpu_check.verdicts import Status
from recipe.async_dapo_lab.plan.calibration import calibrate

ASSETS = Path(__file__).parents[2] / "assets" / "gpu"
OTHER = "verl colocate_async, 0.05 s poll"


def compared(runs: pd.DataFrame) -> pd.DataFrame:
    """Each system's seconds a step, and their ratio to those of verl's own mode where that was run."""
    steps = runs.groupby("system", sort=False)["step_s"].mean()
    return pd.DataFrame({"step_s": steps, "ratio": steps / steps.get(OTHER, float("nan"))}).round(3)


def found(file: Path) -> Iterator[str]:
    """A line for each training and speed of one `gpu_check`, and for what the machine lacks."""
    for check in json.loads(file.read_text("utf-8"))["checks"]:
        if check["theme"] != THEME or check["status"] == Status.FAIL:
            yield f"{check['status']} {check['check']}: {check['found']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--assets", type=path, default=ASSETS)
    options = parser.parse_args()
    shutil.copytree(options.results, options.assets, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.lock"))
    for line in (options.results / "parts.jsonl").read_text("utf-8").splitlines():
        print({key: value for key, value in json.loads(line).items() if key != "last_lines"})
    for file in sorted(options.results.glob("gpu_check_*.json")):
        print(*found(file), sep="\n")
    if (runs := options.results / "runs.csv").exists():
        print(compared(pd.read_csv(runs)).to_string())
    if (record := options.results / "calibration.jsonl").exists():
        print(calibrate(str(record)))


if __name__ == "__main__":
    main()
