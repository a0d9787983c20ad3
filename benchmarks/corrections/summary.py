"""What `exact.csv` and `runs.csv` of the corrections benchmark come to: data frames for tables.

The runs are of a closed study (benchmarks/README.md): what is learned with each correction, staleness forced up.
"""

import pandas as pd

from benchmarks.corrections.exact import FOLDER
from recipe.async_dapo_lab.quickstart.overrides import RESPONSES_PER_PROMPT

ON_POLICY = "on-policy"
PROMPTS_PER_STEP = 4  # few, so that what is unfinished lasts for several steps
TRAJECTORIES_PER_STEP = PROMPTS_PER_STEP * RESPONSES_PER_PROMPT
MEASURES = {
    "staleness": "Staleness",
    "accuracy_after": "Accuracy at the end",
    "off_after": "Less on-policy's at the end",
    "accuracy_late": "Accuracy, mean",
    "off_late": "Less on-policy's mean",
    "ess_ratio": "ESS ratio",
    "mixture_share": "Tokens with a mixture",
    "passes": "Log-prob passes a step",
    "cpu_s": "Step, CPU [s]",
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


def read_runs() -> pd.DataFrame:
    return pd.read_csv(FOLDER / "runs.csv")


def learning_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of every task, machine, strategy, correction and pool; accuracies beside those of the same
    machine's and seeds' on-policy runs."""
    # Over the batch: once for old log-probs, but for bypass; the rest by earlier weights.
    passes = (runs["correction"] != "bypass") + runs["scored_again"].fillna(0) / TRAJECTORIES_PER_STEP
    runs = beside_on_policy(runs).assign(passes=passes)
    groups = runs.groupby(["task", "machine", "learning_rate", "pool", "strategy", "correction"], sort=False)
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
