"""The planner's setting of reference, and what the files of closed studies (benchmarks/README.md) come to: the planner
against published runs and against the quick start.
"""

from pathlib import Path

import pandas as pd

from benchmarks.defaults import draw as defaults
from benchmarks.defaults.run import KINDS
from benchmarks.verl_job import summary as verl_job

FOLDER = Path(__file__).parents[2] / "assets" / "plan"
TARGET = 0.15  # largest relative error that is no miss
REFERENCE_SETTING = "8 x H200, B=512, n=16, 16K"  # how its name in the grid begins
REFERENCE = {
    "system": "System",
    "per_batch_s": "Step [s]",
    "speed_up": "Speed-up",
    "idle": "Idle",
    "waste": "Waste",
    "off_policy": "Off-policy",
}


def reference_table() -> pd.DataFrame:
    """The grid's rows of the planner's own setting, in its seconds: of a step of natural length in the loss."""
    rows = defaults.read_systems()
    rows = rows[rows["setting"].str.startswith(REFERENCE_SETTING) & ~rows["system"].isin(defaults.CAPS_ON_THE_SHARE)]
    sync_s = rows.loc[rows["system"] == defaults.SYNC, "per_batch_s"].item()
    rows = rows.assign(speed_up=sync_s / rows["per_batch_s"])
    rows = rows.sort_values("kind", key=lambda kinds: kinds.map(KINDS.index), kind="stable")
    return rows[list(REFERENCE)].rename(columns=REFERENCE)


def published_table() -> pd.DataFrame:
    frame = pd.concat([pd.read_csv(FOLDER / "validation.csv"), verl_job.validation()], ignore_index=True)
    return _judged(frame)[["Source", "What", "Published", "Simulated", "Error", "Target"]]


def orders_table() -> pd.DataFrame:
    frame = pd.read_csv(FOLDER / "orders.csv")
    frame["holds"] = frame["holds"].map({True: "holds", False: "missed"})
    return frame.rename(columns={"claim": "Published order", "holds": "Simulated"})


def calibration_table() -> pd.DataFrame:
    return _judged(pd.read_csv(FOLDER / "quickstart_predicted.csv"))


def _judged(frame: pd.DataFrame) -> pd.DataFrame:
    frame["target"] = ["met" if abs(error) <= TARGET else "missed" for error in frame["error"]]
    frame["error"] = [f"{100 * error:+.0f} %" for error in frame["error"]]
    return frame.rename(columns={name: name.capitalize() for name in frame.columns if name.islower()})
