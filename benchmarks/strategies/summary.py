"""What `runs.csv` of the strategies benchmark comes to: data frames for tables and the figure."""

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parents[2] / "assets" / "strategies"
JOB = ["task", "steps"]  # the task with what all its runs overrode
MEASURES = {
    "accuracy_after": "Accuracy after",
    "rollout_s_mean": "Rollout, mean [s]",
    "step_s": "Step, median [s]",
    "waste": "Waste",
    "trained_to_dispatched": "Length trained / dispatched",
    "off_policy": "Off-policy",
}


def read_runs(folder: Path = FOLDER) -> pd.DataFrame:
    """A row a run, in the order of the file; jobs and strategies keep the order of their first run."""
    runs = pd.read_csv(folder / "runs.csv")
    overridden = runs["overrides"].notna()
    runs.loc[overridden, "task"] += ", " + runs["overrides"]
    return runs


def strategies_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds, and the standard deviation where there are several."""
    groups = runs.groupby([*JOB, "strategy"], sort=False)
    columns = {"Seeds": groups.size()}
    for column, title in MEASURES.items():
        columns |= {title: groups[column].mean(), f"{title}, +-": groups[column].std()}
    return _named(pd.DataFrame(columns).reset_index())


def runs_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Every run."""
    frame = runs[[*JOB, "strategy", "seed", "accuracy_before", *MEASURES, "commit"]]
    titles = {"seed": "Seed", "accuracy_before": "Accuracy before", "commit": "Commit"} | MEASURES
    return _named(frame.rename(columns=titles))


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.rename(columns={"task": "Task", "steps": "Steps", "strategy": "Strategy, stop rule"})
