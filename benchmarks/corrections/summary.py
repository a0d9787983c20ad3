"""What the files of two closed studies (benchmarks/README.md) come to: each correction's exact gradients, and what is
learned with it, staleness forced up.
"""

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parents[2] / "assets" / "corrections"
ON_POLICY = "on-policy"
MEASURES = {
    "staleness": "Staleness",
    "accuracy_after": "Accuracy at the end",
    "off_after": "Less on-policy's at the end",
    "off_late": "Less on-policy's mean",
}


def exact_table() -> pd.DataFrame:
    """Error under `partial`: a row a correction, a column a drift between versions."""
    rows = pd.read_csv(FOLDER / "exact.csv")
    wide = rows[rows["rollout"] == "partial"].pivot(
        index="correction", columns="kl_per_trajectory", values="error_ratio"
    )
    wide.columns = [f"KL {kl:.3g}" for kl in wide.columns]
    return wide.loc[rows["correction"].unique()].rename_axis("Correction").reset_index()


def read_runs() -> pd.DataFrame:
    return pd.read_csv(FOLDER / "runs.csv")


def learning_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of every task, machine, strategy, correction and pool; accuracies beside those of the same
    machine's and seeds' on-policy runs."""
    groups = beside_on_policy(runs).groupby(
        ["task", "machine", "learning_rate", "pool", "strategy", "correction"], sort=False
    )
    columns = {"Seeds": groups.size()} | {title: groups[column].mean() for column, title in MEASURES.items()}
    return pd.DataFrame(columns).reset_index()


def beside_on_policy(runs: pd.DataFrame) -> pd.DataFrame:
    """With accuracies less those of the same seed's on-policy run on the same machine."""
    return runs.assign(
        off_after=runs["accuracy_after"] - _on_policy(runs, "accuracy_after"),
        off_late=runs["accuracy_late"] - _on_policy(runs, "accuracy_late"),
    )


def _on_policy(runs: pd.DataFrame, accuracy: str) -> pd.Series:
    """That accuracy of the on-policy run with the same task, machine, seed, steps and learning rate."""
    job = ["task", "machine", "seed", "steps", "learning_rate"]
    reference = runs[runs["strategy"] == ON_POLICY][[*job, accuracy]]
    return runs[job].merge(reference, how="left", on=job)[accuracy].set_axis(runs.index)
