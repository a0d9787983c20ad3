"""What `runs.csv` of a closed study (benchmarks/README.md) comes to: full engines, rehearsed."""

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parents[2] / "assets" / "engine_bound"
SYNC, BASE = "verl sync", "verl colocate_async, 0.05 s poll"
SPEEDUPS = {  # by setting, those that two cores should follow
    "1 H100, B=32, n=8, 4K": 10,
    "2 servers, B=32, n=16, 40K": 50,
    "2 servers, B=8, n=8, 8K": 16,
    "2 servers, B=16, n=8, 16K": 15,
    "8 servers, B=64, n=8, 16K": 5,
    "32 servers, B=64, n=16, 16K": 3,
    "8 servers, B=128, n=8, 8K, short tail": 5,
}


def read_runs(folder: Path = FOLDER) -> pd.DataFrame:
    """Settings that verl's asynchronous mode was run on, with their own speed-up: the others show whether the speed-up
    matters. verl's modes first."""
    runs = read_all(folder)
    runs = runs[runs["setting"].isin(runs.loc[runs["system"] == BASE, "setting"])]
    return runs[runs["speedup"] == runs["setting"].map(SPEEDUPS)]


def read_all(folder: Path = FOLDER) -> pd.DataFrame:
    """Every run, verl's modes first."""
    runs = pd.read_csv(folder / "runs.csv")
    return runs.sort_values("system", key=lambda names: ~names.str.startswith("verl"), kind="stable")


def engine_bound_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Medians over the runs of a system, its step over that of verl's asynchronous mode in the same setting, and by how
    much it is longer than planned."""
    groups = runs.groupby(["setting", "system"], sort=False)
    frame = groups[["step_s", "planned_step_s", "off_policy"]].median().reset_index()
    frame["Of verl async"] = frame["step_s"] / frame["setting"].map(
        frame[frame["system"] == BASE].set_index("setting")["step_s"]
    )
    frame["Over planned"] = _as_error(frame["step_s"] / frame["planned_step_s"])
    titles = {"setting": "Setting", "system": "System", "step_s": "Step [s]", "off_policy": "Off-policy"}
    return frame.rename(columns=titles)


def speedups_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Does the compression of time matter? A system's step over verl sync's at each speed-up, and by how much that
    differs from the same at the smallest speed-up; settings and systems that were run at several."""
    keys = ["setting", "system"]
    runs = runs[runs.groupby(keys)["speedup"].transform("nunique") > 1].sort_values("speedup")
    groups = runs.groupby(["setting", "speedup", "system"])
    steps_s, is_valid = groups["step_s"].median().unstack(), groups["is_valid"].all()
    ratios = steps_s.div(steps_s[SYNC], axis="index").stack()
    slowest = ratios.groupby(keys).transform("first")
    table = pd.DataFrame({"Changed": ratios / slowest - 1, "Valid": is_valid}).dropna()
    return table.reset_index().rename(columns={"speedup": "Speed-up"})


def _as_error(ratio: pd.Series) -> pd.Series:
    return (ratio - 1).map("{:+.1%}".format, na_action="ignore")
