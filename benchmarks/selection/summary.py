"""What runs with prompts chosen by history measured, and runs of commit 674b643 that ended groups early (screening)."""

from pathlib import Path

import pandas as pd

from benchmarks.support import learning_curve

FOLDER = Path(__file__).parents[2] / "assets" / "selection"
JOB = ["task", "prompts", "steps"]
MEASURES = {
    "tok_per_group_start": "tokens a trained group, first steps",
    "tok_per_group": "tokens a trained group",
    "midway_cpu_s": "CPU seconds to midway",
    "accuracy_after": "accuracy after",
    "filtered_per_trained_last_third": "filtered a trained group, last third",
}


def read_runs(folder: Path = FOLDER) -> pd.DataFrame:
    """A row a run; `midway_cpu_s` are the CPU seconds of all processes until halfway between the first and last
    accuracies of runs without."""
    runs = pd.read_csv(folder / "runs.csv")
    known = runs[runs["validations"].notna()]
    midways = known[known["row"] == "without"].groupby(JOB)["validations"].agg(learning_curve.midway)
    runs = runs.join(midways.rename("midway"), on=JOB)
    runs["midway_cpu_s"] = [
        None if pd.isna(curve) or pd.isna(target) else learning_curve.cost_to(target, curve)
        for target, curve in zip(runs["midway"], runs["validations_cpu"], strict=True)
    ]
    return runs


def runs_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, and tokens over those without; costs to midway are of the runs with a learning curve, and
    missing where not all of them reached it."""
    groups = runs.groupby([*JOB, "row"], sort=False)
    means = groups[list(MEASURES)].mean()
    all_reached = groups["midway_cpu_s"].count() == groups["validations"].count()
    means["midway_cpu_s"] = means["midway_cpu_s"].where(all_reached)
    means = means.reset_index()
    without = means[means["row"] == "without"]
    for column in ("tok_per_group_start", "tok_per_group", "midway_cpu_s"):
        reference = means[JOB].merge(without[[*JOB, column]], how="left", on=JOB)[column]
        means[f"{MEASURES[column]}, over without"] = means[column] / reference
    return means.round(3).rename(columns=MEASURES)
