"""What `runs.csv` and `curves.csv` come to: how much is lost by old tokens, over how stale they are in nats.

A run is compared with the on-policy run of its task, learning rate, updates a step and seed: both start from the same
model, draw the same prompts and are judged by the same exercises. Intervals are of 95 % over seeds, by Student's t.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.support import learning_curve

FOLDER = Path(__file__).parents[2] / "assets" / "learning"
ON_POLICY, DEFAULT = "on-policy", ("partial", "default", "decoupled")
TASKS = ("addition", "tail 8", "tail 25")
JOB = ["task", "rate_factor", "updates"]
CELL = [*JOB, "strategy", "staleness", "correction"]
SETTING, ROW = CELL[:-1], [*CELL, "seed"]
NATS = {"k3_kl": "nats", "k3_of_1": "per_version", "staleness_mean": "versions"}
PARTS = {"to_mid": 0.5, "to_late": 0.9}  # of on-policy's gain, that a run takes so many updates for
SEEDS, FEW = 5, 3  # of a target; below FEW an interval says nothing
LOST, WITHIN = 0.3, 0.03  # accuracy below on-policy's
_SMOOTHED = 3  # validations
_T_975 = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # by degrees of freedom


def read(folder: Path = FOLDER) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs and curves; shorter runs of a task than its longest are trials, and left out."""
    files = [folder / "runs.csv", folder / "curves.csv"]
    if not all(file.exists() for file in files):
        of_runs = [*ROW, "steps", "learning_rate", "accuracy_before", "accuracy"]
        return pd.DataFrame(columns=of_runs, dtype=float), pd.DataFrame(columns=[*ROW, "step"])
    runs, curves = (pd.read_csv(file, dtype={"staleness": str}) for file in files)
    runs = runs[runs["steps"] == runs.groupby("task")["steps"].transform("max")]
    return runs.drop_duplicates(ROW), curves.drop_duplicates([*ROW, "step"], keep="last")


def compared(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Runs that have an on-policy run beside them.

    Columns that are new or take another's place:
        gap: accuracy less on-policy's.
        nats, per_version, versions: median over the validated steps of a batch's mean k3(mu, pi_prox), of its tokens
            one version old, and of its mean staleness.
        to_mid, to_late: updates until so much of on-policy's gain is reached, over on-policy's own; infinite if never.
    """
    if runs.empty:
        return runs.assign(**dict.fromkeys(("gap", *NATS.values(), *PARTS), 0.0))
    typical = curves.groupby(ROW)[[*NATS]].median().rename(columns=NATS)
    runs = runs.merge(typical, on=ROW).set_index([*JOB, "seed"])
    lines = {key: _curve(own) for key, own in curves.groupby(ROW)}
    on_policy = runs.loc[runs["strategy"] == ON_POLICY, "accuracy"].rename("reached")
    stale = runs[runs["strategy"] != ON_POLICY].join(on_policy, how="inner").reset_index()
    stale["gap"] = stale["accuracy"] - stale["reached"]
    own = stale[ROW].itertuples(index=False, name=None)
    beside = stale.assign(strategy=ON_POLICY, staleness="0", correction="none")[ROW].itertuples(index=False, name=None)
    pairs = [(lines[one], lines[other]) for one, other in zip(own, beside, strict=True)]
    for name, share in PARTS.items():
        targets = stale["accuracy_before"] + share * (stale["reached"] - stale["accuracy_before"])
        told = zip(pairs, stale["accuracy_before"], targets, strict=True)
        stale[name] = [_updates_over(*curves, before=before, target=target) for curves, before, target in told]
    return stale


def _updates_over(own: str, reference: str, *, before: float, target: float) -> float:
    ours, theirs = (learning_curve.cost_to(target, f"0:{before:.4f} {curve}") for curve in (own, reference))
    return math.nan if not theirs else math.inf if ours is None else ours / theirs


def _curve(own: pd.DataFrame) -> str:
    smooth = own.sort_values("step")["accuracy"].rolling(_SMOOTHED, min_periods=1).mean()
    return learning_curve.written(zip(sorted(own["step"]), smooth, strict=True))


def interval(values: Sequence[float] | pd.Series) -> tuple[float, float, float]:
    """Mean, and where it lies with 95 %; NaN for a single value."""
    known = pd.Series(values)
    half = _T_975[min(len(known) - 1, len(_T_975) - 1)] * known.std() / math.sqrt(len(known))
    return known.mean(), known.mean() - half, known.mean() + half


def law(runs: pd.DataFrame) -> pd.DataFrame:
    """A line a cell of compared runs: gap with its interval, medians over seeds of the others."""
    lines = []
    for key, own in runs.groupby(CELL):
        gap, low, high = interval(own["gap"])
        line = dict(zip(CELL, key, strict=True)) | {"seeds": len(own), "gap": gap, "low": low, "high": high}
        lines.append(line | own[[*NATS.values(), *PARTS]].median().to_dict() | {"lost": (own["gap"] <= -LOST).sum()})
    columns = [*CELL, "seeds", "gap", "low", "high", *NATS.values(), *PARTS, "lost"]
    return pd.DataFrame(lines, columns=columns).sort_values(["task", "nats"])


def on_policy(runs: pd.DataFrame) -> pd.DataFrame:
    """What each task's runs are compared with, one update a step: means over seeds."""
    own = runs[(runs["strategy"] == ON_POLICY) & (runs["updates"] == 1)].groupby(["task", "learning_rate", "steps"])
    accuracy = own["accuracy"].agg(["mean", "std", "count"])
    accuracy.columns = ["accuracy after", "deviation over seeds", "seeds"]
    return own["accuracy_before"].mean().rename("accuracy before").to_frame().join(accuracy).reset_index()


def said(line: pd.Series) -> str:
    """A gap with its interval, and the number of seeds where they are fewer than those of the targets."""
    seeds = "" if line["seeds"] >= SEEDS else f", {line['seeds']} seed{'s' if line['seeds'] > 1 else ''}"
    half = "" if math.isnan(line["low"]) else f" +- {line['high'] - line['gap']:.3f}"
    return f"{line['gap']:+.3f}{half}{seeds}"


def by_setting(lines: pd.DataFrame) -> pd.DataFrame:
    """Gap of the default correction and nats: a row a job and strategy, a column a bound of staleness."""
    own = lines[lines["correction"] == DEFAULT[2]]
    own = own.assign(cell=own.apply(said, axis=1) + own["nats"].map(" ({:.1g})".format))
    wide = own.pivot(index=[*JOB, "strategy"], columns="staleness", values="cell")
    wide = wide[sorted(wide.columns, key=lambda level: int(level) if level.isdigit() else 0)]
    per_version = own.groupby([*JOB, "strategy"])["per_version"].median().rename("nats a version")
    return wide.join(per_version).reset_index().rename(columns=lambda name: name.replace("_", " "))


def by_decade(runs: pd.DataFrame) -> pd.DataFrame:
    """A line a decade of nats and correction: means over the settings of each task and seed, and their interval over
    tasks and seeds. A setting is in the decade of its median over corrections.
    """
    nats = runs.groupby(SETTING)["nats"].median()
    decade = np.floor(np.log10(nats)).rename("decade")
    lines = []
    for (power, correction), own in runs.join(decade, on=SETTING).groupby(["decade", "correction"]):
        means = own.groupby(["task", "seed"])["gap"].mean()
        worst = own.groupby(SETTING)["gap"].mean()
        line = {"decade": power, "correction": correction, "settings": len(worst), "seeds": len(means)}
        line |= dict(zip(("gap", "low", "high"), interval(means), strict=True)) | own[[*PARTS]].median().to_dict()
        lines.append(line | {"worst": worst.min()})
    columns = ["decade", "correction", "settings", "seeds", "gap", "low", "high", *PARTS, "worst"]
    return pd.DataFrame(lines, columns=columns)


def decades_table(runs: pd.DataFrame) -> pd.DataFrame:
    """A row a decade, a column a correction: gap, and of how many settings; then the default's updates over on-policy's
    until parts of its gain.
    """
    lines = by_decade(runs)
    cells = lines.apply(said, axis=1) + lines["settings"].map(" ({})".format)
    wide = lines.assign(cell=cells).pivot(index="decade", columns="correction", values="cell")
    own = lines[lines["correction"] == DEFAULT[2]].set_index("decade")
    for name, share in PARTS.items():
        wide[f"Updates to {share:g} of the gain"] = own[name].replace(math.inf, "never reached")
    wide.index = [f"1e{power:.0f} to 1e{power + 1:.0f}" for power in wide.index]
    return wide.rename_axis("Nats a token").reset_index()


def reach(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Decades of the default correction up to the stalest one whose interval is within WITHIN, below the first that is
    shown to lose more; and the others.
    """
    lines = by_decade(runs)
    own = lines[(lines["correction"] == DEFAULT[2]) & (lines["seeds"] >= FEW)]
    within = own[(own["low"] >= -WITHIN) & ~(own["high"] < -WITHIN).cummax()]
    is_kept = own["decade"] <= within["decade"].max()
    return own[is_kept], own[~is_kept]


def recommendation(runs: pd.DataFrame) -> str:
    """How far the default correction keeps level with on-policy, and what is better beyond."""
    kept, beyond = reach(runs)
    if kept.empty and beyond.empty:
        return f"`{DEFAULT[2]}` has no {FEW} seeds of any setting yet.\n"
    words = []
    if len(kept):
        last = kept.iloc[-1]
        words.append(
            f"`{DEFAULT[2]}` stays within {WITHIN:g} of on-policy's accuracy up to {10 ** (last['decade'] + 1):g} nats "
            f"a token: {last['gap']:+.3f} ({last['low']:+.3f} to {last['high']:+.3f}, over tasks and seeds) in the "
            f"decade that ends there, {kept['worst'].min():+.3f} in the worst setting up to it."
        )
    if beyond.empty:
        words.append(f"No staler setting has {FEW} seeds.")
    else:
        first = beyond.iloc[0]
        words.append(
            f"From {10 ** first['decade']:g} nats it may lose more: {first['gap']:+.3f} ({first['low']:+.3f} to "
            f"{first['high']:+.3f}), {first['worst']:+.3f} in the worst setting. From there on, over it in the same "
            f"settings and seeds: {_better(runs, first['decade'])}."
        )
    return " ".join(words) + "\n"


def _better(runs: pd.DataFrame, decade: float) -> str:
    """What other corrections gain in accuracy over the default one in settings that are so stale."""
    stale = runs.groupby(SETTING)["nats"].transform("median") >= 10**decade
    wide = runs[stale].pivot_table(index=[*SETTING, "seed"], columns="correction", values="gap")
    told = []
    for name in wide.columns.drop(DEFAULT[2]):
        gains = (wide[name] - wide[DEFAULT[2]]).dropna().groupby(["task", "seed"]).mean()
        mean, low, high = interval(gains)
        tasks = [interval(some) for _, some in gains.groupby("task")]
        better, worse = (sum(one[1] > 0 for one in tasks), sum(one[2] < 0 for one in tasks))
        told.append((mean, f"`{name}` {mean:+.3f} ({low:+.3f} to {high:+.3f}; {better} tasks better, {worse} worse)"))
    return ", ".join(text for mean, text in sorted(told, reverse=True)) or "no other correction has rows"


def targets(lines: pd.DataFrame) -> pd.DataFrame:
    """The worst setting of each target, or of the best correction where the target leaves it open."""
    usual = lines[(lines["strategy"] == DEFAULT[0]) & (lines["rate_factor"] == 1) & (lines["updates"] == 1)]
    default = usual[usual["correction"] == DEFAULT[2]]
    old = usual[(usual["task"] == TASKS[-1]) & usual["staleness"].isin(["8", "16"])]
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
