"""GPU hours to an accuracy: steps of the learning laboratory times the planner's seconds of a step.

*Steps*: until the mean accuracy of a mode's runs, smoothed, reaches a target of on-policy's runs, over on-policy's own.
Both are means over the same seeds, each with the same first model; the interval is that of a bootstrap over seeds. On
the same GPUs, GPU hours over verl sync's are steps over on-policy's times seconds over verl sync's.
"""

import math
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.learning import summary as learning

from .planned import FOLDER, ON_POLICY, SELECTION, SYNC, modes

DRAWS, SEED = 2000, 0
# Name -> share of on-policy's gain, and how much less accuracy counts as the same: by chance alone a second on-policy
# run ends as far away (law.csv).
TARGETS = {"its end": (1.0, 0.01), "0.9 of its gain": (learning.LATE_SHARE, 0.0)}
_KERNEL = np.ones(3)  # validations


def curves_of(task: str, bound: str) -> pd.DataFrame:
    """Accuracy of a bound's runs with the default correction, at the task's rate, one update a step: a row a step, a
    column a seed.
    """
    _, curves = learning.read()
    strategy, correction = (ON_POLICY, "none") if bound == ON_POLICY else ("partial", learning.DEFAULT[2])
    own = curves[(curves["task"] == task) & (curves["rate_factor"] == 1) & (curves["updates"] == 1)]
    staleness = "0" if bound == ON_POLICY else bound
    own = own[own[["strategy", "staleness", "correction"]].eq([strategy, staleness, correction]).all(axis=1)]
    first = own.drop_duplicates(learning.START).assign(step=0, accuracy=lambda rows: rows["accuracy_before"])
    return pd.concat([first, own]).pivot(index="step", columns=learning.START, values="accuracy").ffill()


def steps_over(own: pd.DataFrame, beside: pd.DataFrame, weights: np.ndarray, target: str) -> np.ndarray:
    """Steps to the target over on-policy's, for each row of weights of the seeds; infinite if never."""
    share, slack = TARGETS[target]
    ours, theirs = (_smooth(weights @ curves.to_numpy().T) for curves in (own, beside))
    before = weights @ beside.to_numpy()[0]
    aims = before + share * (theirs[:, -1] - before) - slack
    at = own.index.to_numpy(float)
    return np.array([_reached(at, a, aim) / _reached(at, b, aim) for a, b, aim in zip(ours, theirs, aims, strict=True)])


def _smooth(curves: np.ndarray) -> np.ndarray:
    counts = np.convolve(np.ones(curves.shape[1]), _KERNEL, "same")
    return np.array([np.convolve(curve, _KERNEL, "same") for curve in curves]) / counts


def _reached(at: np.ndarray, curve: np.ndarray, aim: float) -> float:
    """When a curve first reaches an accuracy, on straight lines between validations."""
    places = np.flatnonzero(curve >= aim)
    if not len(places):
        return math.inf
    if (i := places[0]) == 0:
        return float(at[0])
    return float(at[i - 1] + (at[i] - at[i - 1]) * (aim - curve[i - 1]) / (curve[i] - curve[i - 1]))


def paired(task: str, bound: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of the seeds whose on-policy run has the same first model."""
    own, beside = curves_of(task, bound), curves_of(task, ON_POLICY)
    shared = own.columns.intersection(beside.columns)
    return own[shared], beside[shared]


def planned(path: Path = FOLDER / "planned.csv") -> pd.DataFrame:
    """By mode: seconds of a step of natural length, over verl sync's."""
    rows = pd.read_csv(path).set_index("mode")
    in_loss = 1 - rows["withheld_tok"] / rows["trained_tok"]
    seconds = rows["step_s"] / rows["length_bias"] / in_loss
    return rows.assign(seconds=seconds, of_sync=seconds / seconds[SYNC])


def hours(path: Path = FOLDER / "planned.csv") -> pd.DataFrame:
    """A row a mode, task and target that the laboratory has runs for."""
    steps, lines = planned(path), []
    ratios: dict[tuple[str, str, str], dict[str, float]] = {}
    for mode in modes():
        for task in learning.JUDGED if mode.learned else ():
            for target in TARGETS:
                key = (mode.learned or "", task, target)
                if key not in ratios:
                    ratios[key] = _ratio(*paired(task, key[0]), target)
                of_sync = steps.loc[mode.name, "of_sync"]
                found = ratios[key]
                gpu_hours = {f"hours_{name}": of_sync * found[name] for name in ("mean", "low", "high")}
                line = {"mode": mode.name, "learned": mode.learned, "task": task, "target": target}
                lines.append(line | {"step_of_sync": of_sync} | found | gpu_hours)
    return pd.DataFrame(lines)


def _ratio(own: pd.DataFrame, beside: pd.DataFrame, target: str) -> dict[str, float]:
    """Of all seeds, and of seeds drawn with replacement."""
    rng, seeds = np.random.default_rng(SEED), own.shape[1]
    draws = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=DRAWS) / seeds
    low, high = np.quantile(found := steps_over(own, beside, draws, target), (0.025, 0.975), method="nearest")
    [mean] = steps_over(own, beside, np.full((1, seeds), 1 / seeds), target)
    return {"seeds": seeds, "mean": mean, "low": low, "high": high, "never": np.isinf(found).mean()}


def table(target: str = "its end") -> pd.DataFrame:
    """For the page: a row a mode, of GPU hours over verl sync's."""
    steps, lines = planned(), pd.read_csv(FOLDER / "hours.csv")
    lines = lines[lines["target"] == target]
    rows = []
    for mode in modes():
        own = lines[lines["mode"] == mode.name].set_index("task")
        row = {
            "Mode": mode.name,
            "Step over verl sync's": steps.loc[mode.name, "of_sync"],
            "Staleness, mean": steps.loc[mode.name, "staleness_mean"],
        }
        rows.append(row | {f"GPU hours, {task}": _said(own, task) for task in learning.JUDGED})
    return pd.DataFrame(rows)


def _said(own: pd.DataFrame, task: str) -> str:
    if task not in own.index:
        return "not run"
    mean, low, high = (_number(own.loc[task, f"hours_{name}"]) for name in ("mean", "low", "high"))
    return mean if low == high else f"{mean} ({low} to {high})"


def _number(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.2f}"


def selection() -> pd.DataFrame:
    """Selection by history beside runs without, of the same seeds: tokens, final accuracy, and its interval."""
    runs = pd.read_csv(SELECTION)
    runs, steps = runs[runs["prompts"] == "96"], planned()
    default_s = steps.loc[next(name for name in steps.index if name.endswith("the default")), "seconds"]
    rows = []
    for task, own in runs.groupby("task"):
        by_row = {name: some.set_index("seed") for name, some in own.groupby("row")}
        gap = by_row["history"]["accuracy_after"] - by_row["without"]["accuracy_after"]
        mean, low, high = learning.interval(gap)
        mode = next(name for name in steps.index if name.endswith(f"history as on {task}"))
        rows.append(
            {
                "Task": task,
                "Seeds": len(gap),
                "Tokens a trained group, over without": by_row["history"]["tok_per_group"].mean()
                / by_row["without"]["tok_per_group"].mean(),
                "Step, priced, over without": steps.loc[mode, "seconds"] / default_s,
                "Final accuracy less without's": f"{mean:+.3f} ({low:+.3f} to {high:+.3f})",
            }
        )
    return pd.DataFrame(rows)
