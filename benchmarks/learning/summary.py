"""What `runs.csv` and `curves.csv` come to: how much is lost by old tokens, over how stale they are in nats.

A run is compared with the on-policy run of its task, learning rate, updates a step and seed: both start from the same
model, draw the same prompts and are judged by the same exercises. Intervals are of 95 % over seeds, by Student's t.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.support import learning_curve

from .rows import usual_steps
from .tasks import TASKS as LABORATORY

FOLDER = Path(__file__).parents[2] / "assets" / "learning"
ON_POLICY, DEFAULT = "on-policy", ("partial", "default", "decoupled")
TASKS, OLDEST = ("addition", "tail 8", "sorting"), "tail 25"
JOB = ["task", "rate_factor", "updates", "steps"]
CELL = [*JOB, "strategy", "staleness", "correction"]
SETTING, ROW = CELL[:-1], [*CELL, "seed"]
NATS = {"k3_kl": "nats", "k3_of_1": "per_version", "staleness_mean": "versions"}  # means over a run's steps
LATE = 0.9  # of on-policy's gain
SEEDS, FEW = 5, 3  # of a target; below FEW an interval says nothing
LOST, WITHIN = 0.3, 0.03  # accuracy below on-policy's
_SMOOTHED = 3  # validations
_T_975 = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # by degrees of freedom


def read(folder: Path = FOLDER) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs and curves, the last of each row, as a run that was killed may have left a curve."""
    runs, curves = (pd.read_csv(folder / name, dtype={"staleness": str}) for name in ("runs.csv", "curves.csv"))
    return runs.drop_duplicates(ROW, keep="last"), curves.drop_duplicates([*ROW, "step"], keep="last")


def compared(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Runs that have an on-policy run beside them, second on-policy runs among them.

    Columns that are new or take another's place:
        gap: accuracy less on-policy's, at the end.
        mean_gap: the same, mean over the validations.
        lost: whether the run ends LOST below on-policy.
        nats, per_version, versions: means over the steps of a batch's k3(mu, pi_prox), of its tokens one version old,
            and of its staleness.
        to_late: updates until LATE of on-policy's gain is reached, over on-policy's own; infinite if never.
    """
    is_first = runs["strategy"] == ON_POLICY
    reached = runs[is_first][[*JOB, "seed", "accuracy"]].rename(columns={"accuracy": "reached"})
    pairs = runs[~is_first].rename(columns=NATS).merge(reached, on=[*JOB, "seed"])
    gap, before = pairs["accuracy"] - pairs["reached"], pairs["accuracy_before"]
    curve = {key: own.set_index("step")["accuracy"].sort_index() for key, own in curves.groupby(ROW)}
    keys = pairs[ROW].itertuples(index=False, name=None)
    both = [(curve[key], curve[*key[: len(JOB)], ON_POLICY, "0", "none", key[-1]]) for key in keys]
    late = zip(both, before, before + LATE * (pairs["reached"] - before), strict=True)
    return pairs.assign(
        gap=gap,
        mean_gap=[(own - beside).mean() for own, beside in both],
        lost=gap <= -LOST,
        to_late=[_updates_over(*curves, before=began, target=target) for curves, began, target in late],
    )


def _updates_over(own: pd.Series, beside: pd.Series, *, before: float, target: float) -> float:
    ours, theirs = (learning_curve.cost_to(target, f"0:{before:.4f} {_smooth(curve)}") for curve in (own, beside))
    return math.nan if not theirs else math.inf if ours is None else ours / theirs


def _smooth(curve: pd.Series) -> str:
    return learning_curve.written(curve.rolling(_SMOOTHED, min_periods=1, center=True).mean().items())


def interval(values: Sequence[float] | pd.Series) -> tuple[float, float, float]:
    """Mean, and where it lies with 95 %; NaN for a single value."""
    known = pd.Series(values)
    half = _T_975[min(len(known) - 1, len(_T_975) - 1)] * known.std() / math.sqrt(len(known))
    return known.mean(), known.mean() - half, known.mean() + half


def law(pairs: pd.DataFrame) -> pd.DataFrame:
    """A line a cell of compared runs: gaps with their intervals, medians over seeds of the others."""
    gaps = [f"{of}{name}" for of in ("", "mean_") for name in ("gap", "low", "high")]
    lines = []
    for key, own in pairs.groupby(CELL):
        line = dict(zip(CELL, key, strict=True)) | {"seeds": len(own), "lost": own["lost"].sum()}
        line |= dict(zip(gaps, (*interval(own["gap"]), *interval(own["mean_gap"])), strict=True))
        lines.append(line | own[[*NATS.values(), "to_late"]].median().to_dict())
    columns = [*CELL, "seeds", *gaps, *NATS.values(), "to_late", "lost"]
    return pd.DataFrame(lines, columns=columns).sort_values(["task", "nats"])


def on_policy(runs: pd.DataFrame) -> pd.DataFrame:
    """What each task's runs are compared with, one update a step: means over seeds."""
    own = runs[(runs["strategy"] == ON_POLICY) & (runs["updates"] == 1)].groupby(["task", "learning_rate", "steps"])
    accuracy = own["accuracy"].agg(["mean", "std", "count"])
    accuracy.columns = ["accuracy after", "deviation over seeds", "seeds"]
    return own["accuracy_before"].mean().rename("accuracy before").to_frame().join(accuracy).reset_index()


def said(line: pd.Series, gap: str = "gap") -> str:
    """A gap with its interval, of two seeds both gaps; the seeds where they are fewer than a target's, and the lost."""
    half, lost = line[gap.replace("gap", "high")] - line[gap], f", {line['lost']} lost" if line["lost"] else ""
    if line["seeds"] == 2:
        apart = half / _T_975[1]
        return f"{line[gap] - apart:+.3f}/{line[gap] + apart:+.3f}{lost}"
    if line["seeds"] == 1:
        return f"{line[gap]:+.3f}, 1 seed{lost}"
    seeds = "" if line["seeds"] >= SEEDS else f", {line['seeds']} seeds"
    return f"{line[gap]:+.3f} +- {half:.3f}{seeds}{lost}"


def by_setting(lines: pd.DataFrame) -> pd.DataFrame:
    """What a second on-policy run comes to, and the default correction: a row a setting, by nats."""
    own = lines[(lines["staleness"] == "0") | (lines["correction"] == DEFAULT[2])].sort_values("nats")
    return pd.DataFrame(
        {
            "Setting": [_setting(line) for _, line in own.iterrows()],
            "Nats a token": own["nats"],
            "Of one version": own["per_version"],
            "At the end": [said(line) for _, line in own.iterrows()],
            "Over the whole run": [said(line, "mean_gap").partition(",")[0] for _, line in own.iterrows()],
            f"Updates to {LATE:g} of the gain": own["to_late"].replace(math.inf, "never"),
        }
    )


def others(pairs: pd.DataFrame) -> pd.DataFrame:
    """A row a correction, a column a setting, by nats: accuracy less the default correction's of the same seeds."""
    beside, is_default = [*SETTING, "seed"], pairs["correction"] == DEFAULT[2]
    usual = pairs[is_default][[*beside, "accuracy"]].rename(columns={"accuracy": "usual"})
    both = pairs[~is_default].merge(usual, on=beside)
    lines = law(both.assign(gap=both["accuracy"] - both["usual"]))
    lines = lines.assign(cell=[said(line) for _, line in lines.iterrows()])
    lines["setting"] = [_setting(line) for _, line in lines.iterrows()]
    table = lines.pivot(index="correction", columns="setting", values="cell")[[*dict.fromkeys(lines["setting"])]]
    return table.rename_axis(index="Correction", columns=None).reset_index()


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
    bound = "" if line["staleness"] == "0" else f", bound {line['staleness']}"
    strategy = "" if line["strategy"] == DEFAULT[0] else f", {line['strategy']}"
    rate = "" if line["rate_factor"] == 1 else f", {line['rate_factor']:g}x rate"
    updates = "" if line["updates"] == 1 else f", {line['updates']} updates"
    usual = usual_steps(LABORATORY[line["task"]], rate_factor=line["rate_factor"], updates=line["updates"])
    steps = "" if line["steps"] == usual else f", {line['steps']} steps"
    return f"{line['task']}{bound}{strategy}{rate}{updates}{steps}"


def _where(line: pd.Series) -> str:
    return f"{said(line)} ({_setting(line)}; {line['nats']:.2g} nats)"


def targets(lines: pd.DataFrame) -> pd.DataFrame:
    """The worst setting of each target, or of the best correction where the target leaves it open."""
    usual = lines[(lines["strategy"] == DEFAULT[0]) & (lines["rate_factor"] == 1) & (lines["updates"] == 1)]
    default = usual[usual["task"].isin(TASKS) & (usual["correction"] == DEFAULT[2])]
    old = usual[(usual["task"] == OLDEST) & usual["staleness"].isin(["8", "16"])]
    whole = [own for _, own in old.groupby("correction") if len(own) == 2]
    best = max(whole, key=lambda own: own["low"].fillna(-math.inf).min(), default=old.iloc[:0])
    rows = [
        ("defaults, three tasks", -0.02, default[default["staleness"] == DEFAULT[1]], len(TASKS)),
        ("staleness up to 4, `decoupled`, three tasks", -WITHIN, default[default["staleness"] == "4"], len(TASKS)),
        (f"staleness up to 8 and 16, tail 25, best correction of {len(whole)}, none lost", -0.05, best, 2),
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
    enough = f"{SEEDS} seeds in {len(whole)} of {settings} settings"
    where = f"{worst['task']}, {worst['staleness']}, `{worst['correction']}`, {worst['nats']:.2g} nats"
    met = "no" if fails else "yes" if len(whole) == settings else enough
    return {"Measured, worst": f"{said(worst)} ({where})", "Met": met}
