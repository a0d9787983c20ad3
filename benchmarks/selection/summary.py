"""Exact figures of what screening does to the data, and a simulated reference beside what is computed by hand."""

from math import prod
from pathlib import Path

import pandas as pd

from recipe.async_dapo.core.screening import NO_SCREENING, Screening
from recipe.async_dapo.plan.training_frequency import answers, trained_share, update_weight

FOLDER = Path(__file__).parents[2] / "assets" / "selection"
N, SAMPLES = 16, 4
SCREENINGS = {
    "whole groups": NO_SCREENING,
    "k=4, kept 0 %": Screening(samples=SAMPLES, keep_share=0.0),
    "k=4, kept 5 %": Screening(samples=SAMPLES, keep_share=0.05),
    "k=4, kept 25 %": Screening(samples=SAMPLES, keep_share=0.25),
    "k=8, kept 5 %": Screening(samples=8, keep_share=0.05),
}
CELL = ["task", "prompts", "row", "seed"]  # what names a run's folder
JOB = ["task", "prompts", "steps"]
MEASURES = {
    "tok_per_group_start": "tokens a trained group, first steps",
    "tok_per_group": "tokens a trained group",
    "step_s": "step [s]",
    "accuracy_after": "accuracy after",
    "filtered_per_trained_last_third": "filtered a trained group, last third",
}
SHOWN_RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # the table's; 1 - p is as p


def frequencies(rates: list[float]) -> pd.DataFrame:
    """By enumeration: a row for each screening and pass rate."""
    rows = [
        (name, rate, trained_share(rate, N, screening), update_weight(rate, N, screening), answers(rate, N, screening))
        for name, screening in SCREENINGS.items()
        for rate in rates
    ]
    return pd.DataFrame(rows, columns=["screening", "pass_rate", "trained_share", "update_weight", "answers"])


def frequency_table() -> pd.DataFrame:
    """Share of a prompt's groups that are trained."""
    wide = frequencies(list(SHOWN_RATES)).pivot(index="pass_rate", columns="screening", values="trained_share")
    return wide[list(SCREENINGS)].round(3).reset_index().rename(columns={"pass_rate": "Pass rate"})


def uniform_share(n: int, a: float, b: float) -> float:
    """Of groups of n that are all right or all wrong, for pass rates of Beta(a, b)."""
    all_right = prod((a + i) / (a + b + i) for i in range(n))
    all_wrong = prod((b + i) / (a + b + i) for i in range(n))
    return all_right + all_wrong


def answers_by_hand(samples: int | None, a: float, b: float) -> float:
    """Answers for each trained group of n, none kept."""
    mixed = 1 - uniform_share(N if samples is None else samples, a, b)
    return N / mixed if samples is None else (samples * (1 - mixed) + N * mixed) / mixed


def reference_table() -> pd.DataFrame:
    return pd.read_csv(FOLDER / "reference.csv")


def read_runs(folder: Path = FOLDER) -> pd.DataFrame:
    return pd.read_csv(folder / "runs.csv")


def runs_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, and tokens over those without."""
    means = runs.groupby([*JOB, "row"], sort=False)[list(MEASURES)].mean().reset_index()
    without = means[means["row"] == "without"]
    for column in ("tok_per_group_start", "tok_per_group"):
        reference = means[JOB].merge(without[[*JOB, column]], how="left", on=JOB)[column]
        means[f"{MEASURES[column]}, over without"] = means[column] / reference
    return means.round(3).rename(columns=MEASURES)


def mean_curve(folders: list[Path]) -> pd.DataFrame:
    """Over seeds, step by step."""
    curves = pd.concat([pd.read_csv(folder / "curve.csv") for folder in folders])
    return curves.groupby("step").mean().reset_index()
