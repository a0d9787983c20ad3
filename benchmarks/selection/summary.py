"""Exact figures of what screening does to the data, and what runs with screening and history measured."""

from collections import Counter
from collections.abc import Callable
from math import comb
from pathlib import Path

import pandas as pd

from benchmarks.support import learning_curve
from benchmarks.support.exact_selection import answers, update_weight
from recipe.async_dapo.core.screening import NO_SCREENING, Screening
from recipe.async_dapo_lab.plan.recommend import trained_share
from recipe.async_dapo_lab.quickstart.overrides import RESPONSES_PER_PROMPT

FOLDER = Path(__file__).parents[2] / "assets" / "selection"
N, SAMPLES = 16, 4  # of the reference setting
SCREENINGS = {
    "whole groups": NO_SCREENING,
    "k=4, kept 0 %": Screening(samples=SAMPLES, keep_share=0.0),
    "k=4, kept 5 %": Screening(samples=SAMPLES, keep_share=0.05),
    "k=4, kept 25 %": Screening(samples=SAMPLES, keep_share=0.25),
    "k=8, kept 5 %": Screening(samples=8, keep_share=0.05),
}
JOB = ["task", "prompts", "steps"]
MEASURES = {
    "tok_per_group_start": "tokens a trained group, first steps",
    "tok_per_group": "tokens a trained group",
    "midway_tok": "tokens to midway",
    "midway_cpu_s": "CPU seconds to midway",
    "accuracy_after": "accuracy after",
    "filtered_per_trained_last_third": "filtered a trained group, last third",
}
MEASURED_N, KEEP_SHARE = RESPONSES_PER_PROMPT, 0.05  # of the measured runs


def frequencies(rates: list[float]) -> pd.DataFrame:
    """By enumeration: a row for each screening and pass rate."""
    rows = [
        (name, rate, trained_share(rate, N, screening), update_weight(rate, N, screening), answers(rate, N, screening))
        for name, screening in SCREENINGS.items()
        for rate in rates
    ]
    return pd.DataFrame(rows, columns=["screening", "pass_rate", "trained_share", "update_weight", "answers"])


def read_runs(folder: Path = FOLDER) -> pd.DataFrame:
    """A row a run; `midway_tok` and `midway_cpu_s` are the tokens and the CPU seconds of all processes until halfway
    between the first and last accuracies of runs without."""
    runs = pd.read_csv(folder / "runs.csv")
    known = runs[runs["validations"].notna()]
    midways = known[known["row"] == "without"].groupby(JOB)["validations"].agg(learning_curve.midway)
    runs = runs.join(midways.rename("midway"), on=JOB)
    for cost, column in (("midway_tok", "validations"), ("midway_cpu_s", "validations_cpu")):
        curves = zip(runs["midway"], runs[column], strict=True)
        runs[cost] = [
            None if pd.isna(curve) or pd.isna(target) else learning_curve.cost_to(target, curve)
            for target, curve in curves
        ]
    return runs


def visits_table() -> pd.DataFrame:
    """Of prompts by the share of right answers that their history has: how many, and how often they were answered."""
    seen = pd.read_csv(FOLDER / "visits.csv")
    seen["visits"] = seen["mean"] * seen["count"]
    groups = seen.groupby(["task", "prompts", "row", "rate"], sort=False)
    table = groups.agg(number=("count", "sum"), visits=("visits", "sum"), fewest=("min", "min")).reset_index()
    table["visits"] /= table["number"]
    titles = {"row": "Row", "rate": "Right", "number": "Prompts", "visits": "Visits, mean", "fewest": "Visits, fewest"}
    return table[table["number"] > 0].round(2).rename(columns=titles | {"task": "Task", "prompts": "Data set"})


def right_answers() -> dict[str, Counter[int]]:
    """By task: prompts by their number of right answers of `MEASURED_N`, of the model that training starts with."""
    counts: dict[str, Counter[int]] = {}
    for task, right, prompts in pd.read_csv(FOLDER / "pass_rates.csv").itertuples(index=False):
        counts.setdefault(task, Counter())[right] = prompts
    return counts


def answers_over_whole(right: Counter[int], limits: tuple[int, int], keep_share: float) -> float:
    """Answers a trained group with screening, over those without, by counts of prompts with so many right answers.

    Of the n answers to a prompt, any might have been the first: so the chance that those are alike is known without
    knowing the pass rate.

    Args:
        limits: a group is given up when its first so many answers are all right, or its first so many all wrong.
    """
    n, prompts = MEASURED_N, right.total()

    def share(chance: Callable[[int], float]) -> float:
        return sum(count * chance(r) for r, count in right.items()) / prompts

    valid = share(lambda r: 0 < r < n)
    all_right = (1 - keep_share) * share(lambda r: comb(r, limits[0]) / comb(n, limits[0]))
    all_wrong = (1 - keep_share) * share(lambda r: comb(n - r, limits[1]) / comb(n, limits[1]))
    answered = limits[0] * all_right + limits[1] * all_wrong + n * (1 - all_right - all_wrong)
    trained = 1 - all_right - all_wrong - keep_share * (1 - valid)
    return answered / trained / (n / valid)


def best_table() -> pd.DataFrame:
    """What each number of samples can save with the measured pass rates; the best pair of limits, with no group kept;
    and what is left if a group is known to be uniform before its first answer."""
    rows = []
    for task, right in right_answers().items():
        uniform = (right[0] + right[MEASURED_N]) / right.total()
        by_k = {f"k={k}": answers_over_whole(right, (k, k), KEEP_SHARE) for k in range(2, MEASURED_N)}
        several = range(2, MEASURED_N)
        pairs = [(if_right, if_wrong) for if_right in several for if_wrong in several]
        best, limits = min((answers_over_whole(right, pair, 0.0), pair) for pair in pairs)
        two = {"Best limits, right and wrong": "{} and {}".format(*limits), "With these": best}
        rows.append({"Task": task, "Uniform": uniform} | by_k | two | {"Foreseen": 1 - uniform})
    return pd.DataFrame(rows)


def runs_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, and tokens over those without; costs to midway are of the runs with a learning curve, and
    missing where not all of them reached it."""
    groups = runs.groupby([*JOB, "row"], sort=False)
    means = groups[list(MEASURES)].mean()
    for column in ("midway_tok", "midway_cpu_s"):
        means[column] = means[column].where(groups[column].count() == groups["validations"].count())
    means = means.reset_index()
    without = means[means["row"] == "without"]
    for column in ("tok_per_group_start", "tok_per_group", "midway_tok", "midway_cpu_s"):
        reference = means[JOB].merge(without[[*JOB, column]], how="left", on=JOB)[column]
        means[f"{MEASURES[column]}, over without"] = means[column] / reference
    return means.round(3).rename(columns=MEASURES)


def mean_curve(curves: pd.Series) -> pd.DataFrame:
    """`cost` and `accuracy`, validation by validation, over runs with equally many."""
    points = [(at, *point) for text in curves for at, point in enumerate(learning_curve.read(text))]
    return pd.DataFrame(points, columns=["at", "cost", "accuracy"]).groupby("at").mean()
