"""What `runs.csv` of a closed study (benchmarks/README.md) comes to: what each strategy costs, and what it learns."""

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parents[2] / "assets" / "strategies"
MEASURES = {
    "accuracy_after": "Accuracy after",
    "rollout_s_mean": "Rollout, mean [s]",
    "waste": "Waste",
    "trained_to_dispatched": "Length trained / dispatched",
}


def strategies_table() -> pd.DataFrame:
    """Means over seeds, in the order of the first runs."""
    runs = pd.read_csv(FOLDER / "runs.csv")
    groups = runs.groupby(["task", "steps", "strategy"], sort=False)
    table = groups[list(MEASURES)].mean()
    table.insert(0, "Seeds", groups.size())
    titles = {"task": "Task", "steps": "Steps", "strategy": "Strategy, stop rule"}
    return table.reset_index().rename(columns=titles | MEASURES)
