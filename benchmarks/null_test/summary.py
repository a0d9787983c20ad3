"""What `runs.csv` of the null test comes to: measured and rehearsed ratios side by side."""

from pathlib import Path

import pandas as pd

from benchmarks.side_by_side import summary as side_by_side

FOLDER = Path(__file__).parents[2] / "assets" / "null_test"
TARGET = 0.15  # largest relative error that is no miss
COLUMNS = ["tail", "system", "repetition", "beside", "step_s", "is_valid", "commit"]


def read_runs(folder: Path = FOLDER) -> pd.DataFrame:
    """Every rehearsal; none before the first has been kept."""
    file = folder / "runs.csv"
    return pd.read_csv(file) if file.exists() else pd.DataFrame(columns=COLUMNS)


def null_table(runs: pd.DataFrame) -> pd.DataFrame:
    """A system's step over verl sync's on one engine, rehearsed and measured: in the repetition of the side by side
    that ran on the recorded machine (`beside`), and over all repetitions (ratio of medians), which the target is for.
    """
    steps_s = runs.groupby(["tail", "beside", "system"], sort=False)["step_s"].median()
    frame = steps_s.rename("Rehearsed step [s]").reset_index()
    measured = side_by_side.read_runs().query("engines == 1").astype({"system": str})
    frame["Rehearsed, of verl sync"] = _of_sync(steps_s).to_numpy()
    within = _of_sync(measured.set_index(["tail", "repetition", "system"])["step_s_mean"])
    frame["Measured, recorded repetition"] = within.reindex(steps_s.index).to_numpy()
    medians = (
        side_by_side.ratios(measured).query(f"base == '{side_by_side.SYNC}'").set_index(["tail", "system"])["ratio"]
    )
    frame["Measured, all"] = medians.reindex(pd.MultiIndex.from_frame(frame[["tail", "system"]])).to_numpy()
    beside, error = (
        frame["Rehearsed, of verl sync"] / frame[f"Measured, {of}"] - 1 for of in ("recorded repetition", "all")
    )
    frame["Error, recorded repetition"] = beside.map("{:+.0%}".format, na_action="ignore")
    frame["Error, all"] = error.map("{:+.0%}".format)
    frame["Target"] = ["met" if abs(one) <= TARGET else "missed" for one in error]
    are_valid = runs.groupby(["tail", "beside", "system"], sort=False)["is_valid"].all()
    frame["Valid"] = ["yes" if valid else "no" for valid in are_valid]
    frame = frame[frame["system"] != side_by_side.SYNC].drop(columns="beside")
    return frame.rename(columns={"tail": "Tail", "system": "System"})


def _of_sync(steps_s: pd.Series) -> pd.Series:
    """Over that of verl's sync mode of the same tail and repetition; missing where it has none."""
    sync_s = steps_s[steps_s.index.get_level_values("system") == side_by_side.SYNC].droplevel("system")
    return steps_s / sync_s.reindex(steps_s.index.droplevel("system")).to_numpy()
