"""What `exact.csv` and `runs.csv` of the corrections benchmark come to: data frames for tables."""

import pandas as pd

from benchmarks.corrections.exact import FOLDER

MEASURES = {
    "accuracy_after": "Accuracy after",
    "staleness": "Staleness",
    "ess_ratio": "ESS ratio",
    "step_s": "Step, median [s]",
    "log_probs_s": "Older versions' log-probs [s]",
}
_TITLES = {"relative_bias": "Bias", "variance_ratio": "Variance", "error_ratio": "Error"}


def exact_table() -> pd.DataFrame:
    """A row a drift and correction; the measures of each strategy beside each other."""
    rows = pd.read_csv(FOLDER / "exact.csv")
    rows["KL"] = rows["kl_per_trajectory"]
    order = {correction: i for i, correction in enumerate(rows["correction"].unique())}
    table = rows.pivot(index=["KL", "correction"], columns="rollout", values=list(_TITLES))
    table = table.sort_index(key=lambda level: level.map(order) if level.name == "correction" else level)
    strategies = list(rows["rollout"].unique())
    table = table[[(measure, strategy) for strategy in strategies for measure in _TITLES]]
    table.columns = [f"{_TITLES[measure]}, {strategy}" for measure, strategy in table.columns]
    return table.reset_index().rename(columns={"correction": "Correction"})


def learning_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of every task, strategy, correction and pool."""
    groups = runs.groupby(["task", "pool", "strategy", "correction"], sort=False)
    columns = {"Seeds": groups.size()} | {title: groups[column].mean() for column, title in MEASURES.items()}
    return pd.DataFrame(columns).reset_index()
