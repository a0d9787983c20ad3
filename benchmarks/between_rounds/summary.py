"""What `runs.csv` of the passage between two rounds comes to."""

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parents[2] / "assets" / "between_rounds"
MEASURES = {
    "coordinator_mb": "Through the coordinator [MB]",
    "back_s": "Back to the trainer [s]",
    "first_s": "First group out [s]",
    "between_s": "Engines wait [s]",
    "out_s": "All groups out [s]",
}


def read_runs(folder: Path = FOLDER) -> pd.DataFrame:
    return pd.read_csv(folder / "runs.csv")


def between_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Medians over the repetitions."""
    groups = runs.groupby(["trajectories", "tokens", "workers", "by"], sort=False)
    frame = groups[list(MEASURES)].median().reset_index()
    frame.insert(4, "Runs", groups.size().to_numpy())
    names = {"trajectories": "Trajectories", "tokens": "Tokens each", "workers": "Workers", "by": "Tokens travel by"}
    return frame.rename(columns=names | MEASURES)
