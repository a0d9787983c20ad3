"""What `runs.csv` of the null test comes to: measured and rehearsed ratios side by side."""

from pathlib import Path

import pandas as pd

from benchmarks.side_by_side import summary as side_by_side

FOLDER = Path(__file__).parents[2] / "assets" / "null_test"
TARGET = 0.15  # largest relative error that is no miss
COLUMNS = ["tail", "system", "repetition", "step_s", "is_valid", "commit"]


def read_runs(folder: Path = FOLDER) -> pd.DataFrame:
    """Every rehearsal; none before the first has been kept."""
    file = folder / "runs.csv"
    return pd.read_csv(file) if file.exists() else pd.DataFrame(columns=COLUMNS)


def null_table(runs: pd.DataFrame) -> pd.DataFrame:
    """A system's step over verl sync's on one engine, measured (medians over repetitions) and rehearsed."""
    measured = side_by_side.ratios(side_by_side.read_runs()).query(f"engines == 1 and base == '{side_by_side.SYNC}'")
    measured = measured.assign(system=measured["system"].astype(str)).set_index(["tail", "system"])["ratio"]
    groups = runs.groupby(["tail", "system"], sort=False)
    frame = groups["step_s"].median().reset_index()
    sync_s = frame["tail"].map(frame[frame["system"] == side_by_side.SYNC].set_index("tail")["step_s"])
    frame["Measured, of verl sync"] = measured.reindex(pd.MultiIndex.from_frame(frame[["tail", "system"]])).to_numpy()
    frame["Rehearsed, of verl sync"] = frame["step_s"] / sync_s
    error = frame["Rehearsed, of verl sync"] / frame["Measured, of verl sync"] - 1
    frame["Error"] = error.map("{:+.0%}".format)
    frame["Target"] = ["met" if abs(one) <= TARGET else "missed" for one in error]
    frame["Valid"] = ["yes" if valid else "no" for valid in groups["is_valid"].all()]
    frame = frame[frame["system"] != side_by_side.SYNC]
    return frame.rename(columns={"tail": "Tail", "system": "System", "step_s": "Rehearsed step [s]"})
