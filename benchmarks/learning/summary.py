"""What `runs.csv` and `curves.csv` come to: how much is lost by old tokens, over how stale they are in nats.

A run is compared with the on-policy run of its task, learning rate, updates a step and seed: both start from the same
model, draw the same prompts and are judged by the same exercises. Intervals are of 95 % over seeds, by Student's t.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.support import learning_curve

FOLDER = Path(__file__).parents[2] / "assets" / "learning"
ON_POLICY, DEFAULT = "on-policy", ("partial", "default", "decoupled")
TASKS, OLDEST = ("addition", "tail 8", "sorting"), "tail 25"
JOB = ["task", "rate_factor", "updates"]
CELL = [*JOB, "strategy", "staleness", "correction"]
SETTING, ROW = CELL[:-1], [*CELL, "seed"]
NATS = {"k3_kl": "nats", "k3_of_1": "per_version", "staleness_mean": "versions"}  # means over a run's steps
LATE = 0.9  # of on-policy's gain
SEEDS, FEW = 5, 3  # of a target; below FEW an interval says nothing
LOST, WITHIN = 0.3, 0.03  # accuracy below on-policy's
_SMOOTHED = 3  # validations
_T_975 = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # by degrees of freedom


def read(folder: Path = FOLDER) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs and curves, the last of each: one that was killed may have left a curve. Shorter runs of a task than its
    longest are trials, and left out.
    """
    files = [folder / "runs.csv", folder / "curves.csv"]
    if not all(file.exists() for file in files):
        of_runs = [*ROW, "steps", "learning_rate", "accuracy_before", "accuracy"]
        return pd.DataFrame(columns=of_runs, dtype=float), pd.DataFrame(columns=[*ROW, "step"])
    runs, curves = (pd.read_csv(file, dtype={"staleness": str}) for file in files)
    runs = runs[runs["steps"] == runs.groupby("task")["steps"].transform("max")]
    return runs.drop_duplicates(ROW, keep="last"), curves.drop_duplicates([*ROW, "step"], keep="last")


def compared(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Runs that have an on-policy run beside them.

    Columns that are new or take another's place:
        gap: accuracy less on-policy's, at the end.
        mean_gap: the same, mean over the validations.
        nats, per_version, versions: means over the steps of a batch's k3(mu, pi_prox), of its tokens one version old,
            and of its staleness.
        to_late: updates until LATE of on-policy's gain is reached, over on-policy's own; infinite if never.
    """
    if runs.empty:
        return runs.assign(**dict.fromkeys(("gap", "mean_gap", *NATS.values(), "to_late"), 0.0))
    runs = runs.rename(columns=NATS).set_index([*JOB, "seed"])
    lines = {key: _curve(own) for key, own in curves.groupby(ROW)}
    on_policy = runs.loc[runs["strategy"] == ON_POLICY, "accuracy"].rename("reached")
    stale = runs[runs["strategy"] != ON_POLICY].join(on_policy, how="inner").reset_index()
    stale["gap"] = stale["accuracy"] - stale["reached"]
    validated = [*JOB, "seed", "step"]
    beside = curves[curves["strategy"] == ON_POLICY].set_index(validated)["accuracy"].rename("reached")
    gaps = curves.join(beside, on=validated).assign(mean_gap=lambda both: both["accuracy"] - both["reached"])
    stale = stale.merge(gaps.groupby(ROW)["mean_gap"].mean(), on=ROW)
    own = stale[ROW].itertuples(index=False, name=None)
    beside = stale.assign(strategy=ON_POLICY, staleness="0", correction="none")[ROW].itertuples(index=False, name=None)
    pairs = [(lines[one], lines[other]) for one, other in zip(own, beside, strict=True)]
    targets = stale["accuracy_before"] + LATE * (stale["reached"] - stale["accuracy_before"])
    told = zip(pairs, stale["accuracy_before"], targets, strict=True)
    stale["to_late"] = [_updates_over(*curves, before=before, target=target) for curves, before, target in told]
    return stale


def _updates_over(own: str, reference: str, *, before: float, target: float) -> float:
    ours, theirs = (learning_curve.cost_to(target, f"0:{before:.4f} {curve}") for curve in (own, reference))
    return math.nan if not theirs else math.inf if ours is None else ours / theirs


def _curve(own: pd.DataFrame) -> str:
    smooth = own.sort_values("step")["accuracy"].rolling(_SMOOTHED, min_periods=1, center=True).mean()
    return learning_curve.written(zip(sorted(own["step"]), smooth, strict=True))


def interval(values: Sequence[float] | pd.Series) -> tuple[float, float, float]:
    """Mean, and where it lies with 95 %; NaN for a single value."""
    known = pd.Series(values)
    half = _T_975[min(len(known) - 1, len(_T_975) - 1)] * known.std() / math.sqrt(len(known))
    return known.mean(), known.mean() - half, known.mean() + half


def law(runs: pd.DataFrame) -> pd.DataFrame:
    """A line a cell of compared runs: gaps with their intervals, medians over seeds of the others."""
    lines = []
    for key, own in runs.groupby(CELL):
        line = dict(zip(CELL, key, strict=True)) | {"seeds": len(own)}
        for name in ("gap", "mean_gap"):
            mean, low, high = interval(own[name])
            line |= {name: mean, name.replace("gap", "low"): low, name.replace("gap", "high"): high}
        lines.append(line | own[[*NATS.values(), "to_late"]].median().to_dict() | {"lost": (own["gap"] <= -LOST).sum()})
    gaps = [f"{of}{name}" for of in ("", "mean_") for name in ("gap", "low", "high")]
    columns = [*CELL, "seeds", *gaps, *NATS.values(), "to_late", "lost"]
    return pd.DataFrame(lines, columns=columns).sort_values(["task", "nats"])


def on_policy(runs: pd.DataFrame) -> pd.DataFrame:
    """What each task's runs are compared with, one update a step: means over seeds."""
    own = runs[(runs["strategy"] == ON_POLICY) & (runs["updates"] == 1)].groupby(["task", "learning_rate", "steps"])
    accuracy = own["accuracy"].agg(["mean", "std", "count"])
    accuracy.columns = ["accuracy after", "deviation over seeds", "seeds"]
    return own["accuracy_before"].mean().rename("accuracy before").to_frame().join(accuracy).reset_index()


def said(line: pd.Series, gap: str = "gap") -> str:
    """A gap with its interval, and the number of seeds where they are fewer than those of the targets."""
    seeds = "" if line["seeds"] >= SEEDS else f", {line['seeds']} seed{'s' if line['seeds'] > 1 else ''}"
    half = line[gap.replace("gap", "high")] - line[gap]
    return f"{line[gap]:+.3f}{'' if math.isnan(half) else f' +- {half:.3f}'}{seeds}"


def by_setting(lines: pd.DataFrame) -> pd.DataFrame:
    """What the default correction comes to: a row a setting, by nats."""
    own = lines[lines["correction"] == DEFAULT[2]].sort_values("nats")
    table = pd.DataFrame({"Setting": own.apply(_setting, axis=1, result_type="reduce"), "Nats a token": own["nats"]})
    table["Of one version"] = own["per_version"]
    table["At the end"] = [said(line) for _, line in own.iterrows()]
    table["Over the whole run"] = [said(line, "mean_gap").partition(",")[0] for _, line in own.iterrows()]
    return table.assign(**{f"Updates to {LATE:g} of the gain": own["to_late"].replace(math.inf, "never")})


def others(runs: pd.DataFrame) -> pd.DataFrame:
    """A row a correction: its accuracy less the default's in the settings and seeds that both have, a value a task and
    seed."""
    wide = runs.pivot_table(index=[*SETTING, "seed"], columns="correction", values="gap", observed=True)
    rows = []
    for name in wide.columns.drop(DEFAULT[2], errors="ignore") if DEFAULT[2] in wide else ():
        gains = (wide[name] - wide[DEFAULT[2]]).dropna()
        if gains.empty:
            continue
        mean, low, high = interval(gains.groupby(["task", "seed"]).mean())
        settings = gains.groupby(SETTING).mean()
        half = "" if math.isnan(low) else f" +- {high - mean:.3f}"
        ends = settings.agg(["min", "max"])
        rows.append((f"`{name}`", len(settings), len(gains), f"{mean:+.3f}{half}", *ends))
    columns = ["Correction", "Settings", "Pairs", "Less `decoupled`", "Worst setting", "Best setting"]
    return pd.DataFrame(rows, columns=columns)


def recommendation(lines: pd.DataFrame) -> str:
    """Up to which setting, by nats, the default correction is shown to keep level with on-policy in every one."""
    own = lines[lines["correction"] == DEFAULT[2]].sort_values("nats")
    known = own[own["seeds"] >= FEW]
    within = known[~(known["low"] < -WITHIN).cummax()]
    words = []
    if len(within):
        worst = within.loc[within["low"].idxmin()]
        words.append(
            f"In each of {len(within)} settings, up to {within['nats'].max():.2g} nats a token, `{DEFAULT[2]}` ends "
            f"within {WITHIN:g} of on-policy's accuracy, by their intervals; worst {_where(worst)}."
        )
    if len(within) < len(known):
        words.append(f"Of the next one that is not shown: {_where(known.iloc[len(within)])}.")
    if len(own) > len(known) or own.empty:
        words.append(f"Settings with fewer than {FEW} seeds: {len(own) - len(known)}.")
    return " ".join(words) + "\n"


def _setting(line: pd.Series) -> str:
    strategy = "" if line["strategy"] == DEFAULT[0] else f", {line['strategy']}"
    rate = "" if line["rate_factor"] == 1 else f", {line['rate_factor']:g} times the rate"
    updates = "" if line["updates"] == 1 else f", {line['updates']} updates"
    return f"{line['task']}, bound {line['staleness']}{strategy}{rate}{updates}"


def _where(line: pd.Series) -> str:
    return f"{said(line)} ({_setting(line)}; {line['nats']:.2g} nats)"


def targets(lines: pd.DataFrame) -> pd.DataFrame:
    """The worst setting of each target, or of the best correction where the target leaves it open."""
    usual = lines[(lines["strategy"] == DEFAULT[0]) & (lines["rate_factor"] == 1) & (lines["updates"] == 1)]
    default = usual[usual["correction"] == DEFAULT[2]]
    default, old = default[default["task"].isin(TASKS)], usual[usual["task"] == OLDEST]
    old = old[old["staleness"].isin(["8", "16"])]
    worst = old.groupby("correction")["low"].agg(["min", "size"])
    worst = worst[worst["size"] == 2]["min"].dropna()
    best = old[old["correction"] == worst.idxmax()] if len(worst) else old.iloc[:0]
    of_all = f"best of {len(worst)} corrections" if len(worst) else "best correction"
    rows = [
        ("defaults, three tasks", -0.02, default[default["staleness"] == DEFAULT[1]], len(TASKS)),
        ("staleness up to 4, `decoupled`, three tasks", -WITHIN, default[default["staleness"] == "4"], len(TASKS)),
        (f"staleness up to 8 and 16, tail 25, {of_all}, none lost", -0.05, best, 2),
    ]
    return pd.DataFrame(
        {"Target": f"Accuracy less on-policy's: {name}", "Limit": limit} | _judged(limit, own, settings)
        for name, limit, own, settings in rows
    )


def _judged(limit: float, own: pd.DataFrame, settings: int) -> dict[str, str]:
    if own.empty:
        return {"Measured, worst": "", "Met": "not run yet"}
    worst, whole = own.loc[own["low"].fillna(-math.inf).idxmin()], own[own["seeds"] >= SEEDS]
    fails = ((whole["low"] < limit) | (whole["lost"] > 0)).any()
    met = (
        "no" if fails else "yes" if len(whole) == settings else f"{SEEDS} seeds in {len(whole)} of {settings} settings"
    )
    where = f"{worst['task']}, {worst['staleness']}, `{worst['correction']}`, {worst['nats']:.2g} nats"
    return {"Measured, worst": f"{said(worst)} ({where})", "Met": met}
