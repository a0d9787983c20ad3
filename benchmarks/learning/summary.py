"""What `runs.csv` and `curves.csv` come to: how much is lost by old tokens, over how stale they are in nats.

A run is compared with the on-policy run of its task, learning rate, updates a step and seed: both start from the same
model, which its fingerprint and first accuracy tell, draw the same prompts and are judged by the same exercises.
Intervals are of 95 % over seeds, by Student's t.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.support import learning_curve

from .rows import ON_POLICY, usual_steps
from .tasks import QUICK_TASK, TASKS

FOLDER = Path(__file__).parents[2] / "assets" / "learning"
DEFAULT = ("partial", "default", "decoupled")
JUDGED, OLDEST = ("addition", "tail 8", "sorting"), "tail 25"
JOB = ["task", "rate_factor", "updates", "steps"]
CELL = [*JOB, "strategy", "staleness", "correction"]
SETTING, START = CELL[:-1], ["seed", "start", "accuracy_before"]
ROW = [*CELL, *START]
GAPS = ["gap", "mean_gap"]
MEANS = {
    "k3_quarter_1": "nats",
    "k3_quarter_2": "nats_at_half",
    "k3_kl": "nats_of_run",
    "k3_of_1": "per_version",
    "staleness_mean": "versions",
}
LATE_SHARE = 0.9  # of on-policy's gain
SEEDS = 5  # of a target
PLANNED = (*range(5), *range(10, 15))  # seeds; the second five came where the first left a target open
SCREENED = {"task": "sorting", "rate_factor": 4.0, "updates": 1, "strategy": "partial"}
FEW = 3  # below which an interval says nothing
LOST, WITHIN = 0.3, 0.03  # accuracy below on-policy's
WITHIN_STACK = 0.05  # of the real stack's accuracy
_SMOOTHED = 3  # validations
_T_975 = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # by degrees of freedom


def read(folder: Path = FOLDER) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs and curves of the PLANNED seeds; of each row the last, as a run that was killed may leave a curve.

    Runs of other lengths than the usual ones are trials, and left out.
    """
    text = {"staleness": str, "start": str}
    runs, curves = (pd.read_csv(folder / name, dtype=text).fillna({"start": ""}) for name in ("runs.csv", "curves.csv"))
    runs, curves = (table[table["seed"].isin(PLANNED) & _are_usual(table)] for table in (runs, curves))
    return runs.drop_duplicates(ROW, keep="last"), curves.drop_duplicates([*ROW, "step"], keep="last")


def compared(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Runs that have an on-policy run beside them, second on-policy runs among them.

    Columns that are new or take another's place:
        gap: accuracy minus on-policy's, at the end.
        mean_gap, half_gap: the same, mean over the validations, and over those of the second quarter.
        lost: whether a run is LOST below on-policy, mean over its second half.
        nats: mean of a batch's k3(mu, pi_prox) in the run's first quarter, before a failing run raises it.
        nats_at_half: the same in the second quarter.
        nats_of_run, per_version, versions: means over all steps of a batch's k3, of that of its tokens one version old,
            and of its staleness.
        to_late: updates until LATE_SHARE of on-policy's gain is reached, over on-policy's own; infinite if never.
    """
    is_first = runs["strategy"] == ON_POLICY
    reached = runs[is_first][[*JOB, *START, "accuracy"]].rename(columns={"accuracy": "reached"})
    pairs = runs[~is_first].rename(columns=MEANS).merge(reached, on=[*JOB, *START]).reset_index(drop=True)
    by_row = {key: own.set_index("step")["accuracy"].sort_index() for key, own in curves.groupby(ROW)}
    over_time = pd.DataFrame(_over_time(pair, by_row) for _, pair in pairs.iterrows())
    return pairs.assign(gap=pairs["accuracy"] - pairs["reached"]).join(over_time)


def _over_time(pair: pd.Series, by_row: dict[tuple[object, ...], pd.Series]) -> dict[str, object]:
    """A run that has ended early keeps the accuracy of its last model, or that of its first without any step."""
    beside = by_row[*pair[JOB], ON_POLICY, "0", "none", *pair[START]]
    own = by_row.get(tuple(pair[ROW]), pd.Series({0: pair["accuracy_before"]}))
    curve = own
    if not own.index.equals(beside.index):
        curve = own.reindex(own.index.union(beside.index)).ffill().bfill().reindex(beside.index)
    gaps, share = curve - beside, beside.index / pair["steps"]
    before = pair["accuracy_before"]
    return {
        "mean_gap": gaps.mean(),
        "half_gap": gaps[(share > 0.25) & (share <= 0.5)].mean(),
        "lost": bool(gaps[share > 0.5].mean() <= -LOST),
        "to_late": _updates_over(curve, beside, before=before, target=before + LATE_SHARE * (pair["reached"] - before)),
    }


def _updates_over(own: pd.Series, beside: pd.Series, *, before: float, target: float) -> float:
    ours, theirs = (learning_curve.cost_to(target, f"0:{before:.4f} {_smooth(curve)}") for curve in (own, beside))
    return math.nan if not theirs else math.inf if ours is None else ours / theirs


def _smooth(curve: pd.Series) -> str:
    return learning_curve.written(curve.rolling(_SMOOTHED, min_periods=1, center=True).mean().items())


def _t_975(free: int) -> float:
    """Beyond the table its last value, which is a little too large."""
    return _T_975[min(free, len(_T_975) - 1)]


def interval(values: Sequence[float] | pd.Series) -> tuple[float, float, float]:
    """Mean, and where it lies with 95 %; NaN for a single value."""
    known = pd.Series(values)
    half = _t_975(len(known) - 1) * known.std() / math.sqrt(len(known))
    return known.mean(), known.mean() - half, known.mean() + half


def law(pairs: pd.DataFrame) -> pd.DataFrame:
    """A line a cell of compared runs: gaps with their intervals, medians over seeds of the others."""
    gaps = [f"{of}{name}" for of in ("", "mean_") for name in ("gap", "low", "high")]
    lines = []
    for key, own in pairs.groupby(CELL):
        line = dict(zip(CELL, key, strict=True)) | {"seeds": len(own), "lost": own["lost"].sum()}
        line |= dict(zip(gaps, (*interval(own["gap"]), *interval(own["mean_gap"])), strict=True))
        lines.append(line | own[[*MEANS.values(), "to_late"]].median().to_dict())
    columns = [*CELL, "seeds", *gaps, *MEANS.values(), "to_late", "lost"]
    return pd.DataFrame(lines, columns=columns).sort_values(["task", "nats"])


def on_policy(runs: pd.DataFrame) -> pd.DataFrame:
    """What each task's runs are compared with, at its own rate, one update a step: means over seeds."""
    usual = (runs["rate_factor"] == 1) & (runs["updates"] == 1)
    own = runs[usual & (runs["strategy"] == ON_POLICY)].groupby(["task", "learning_rate", "steps"])
    accuracy = own["accuracy"].agg(["mean", "std", "count"])
    accuracy.columns = ["accuracy after", "deviation", "runs"]
    return own["accuracy_before"].mean().rename("accuracy before").to_frame().join(accuracy).reset_index()


def said(line: pd.Series, gap: str = "gap") -> str:
    """A gap with its interval, of two seeds both gaps; the seeds where they are fewer than a target's, and the lost."""
    half, lost = line[gap.replace("gap", "high")] - line[gap], f", {line['lost']} lost" if line["lost"] else ""
    if line["seeds"] == 2:
        apart = half / _t_975(1)
        return f"{line[gap] - apart:+.3f}/{line[gap] + apart:+.3f}{lost}"
    if line["seeds"] == 1:
        return f"{line[gap]:+.3f}, 1 seed{lost}"
    seeds = "" if line["seeds"] >= SEEDS else f", {line['seeds']} seeds"
    return f"{line[gap]:+.3f} +- {half:.3f}{seeds}{lost}"


def by_setting(lines: pd.DataFrame) -> pd.DataFrame:
    """What a second on-policy run comes to, and the default correction: a row a setting of FEW seeds, by nats."""
    own = lines[(lines["staleness"] == "0") | (lines["correction"] == DEFAULT[2])]
    own = own[own["seeds"] >= FEW].sort_values("nats")
    return pd.DataFrame(
        {
            "Setting": [_setting(line) for _, line in own.iterrows()],
            "Nats a token": own["nats"],
            "Of one version": own["per_version"],
            "At the end": [said(line) for _, line in own.iterrows()],
            "Over the whole run": [said(line, "mean_gap").partition(",")[0] for _, line in own.iterrows()],
            f"Updates to {LATE_SHARE:g} of the gain": own["to_late"].replace(math.inf, "never"),
        }
    )


def over_default(pairs: pd.DataFrame) -> pd.DataFrame:
    """Runs with another correction, their gaps those to the same run with the default one in on-policy's place."""
    start = [*SETTING, *START]
    usual = pairs[pairs["correction"] == DEFAULT[2]][[*start, *GAPS]]
    others = pairs[(pairs["correction"] != DEFAULT[2]) & (pairs["staleness"] != "0")]
    both = others.merge(usual, on=start, suffixes=("", " of usual"))
    return both.assign(**{gap: both[gap] - both[f"{gap} of usual"] for gap in GAPS})


def screening(lines: pd.DataFrame) -> pd.DataFrame:
    """A row a correction, a column a bound, of two seeds or more: `over_default` in the SCREENED settings."""
    own = lines[(lines[list(SCREENED)] == list(SCREENED.values())).all(axis=1) & (lines["seeds"] > 1)]
    own = own.assign(cell=[said(line) for _, line in own.iterrows()], bound="Bound " + own["staleness"])
    table = own.pivot(index="correction", columns="bound", values="cell").fillna("")
    return table.rename_axis(index="Correction", columns=None).reset_index()


def decided(lines: pd.DataFrame, over: pd.DataFrame) -> pd.DataFrame:
    """A row a setting where another correction has SEEDS seeds beside the default one: that one minus on-policy, and
    the others minus that one, by nats.
    """
    known = over[over["seeds"] >= SEEDS]
    known = known.assign(cell=[said(line) for _, line in known.iterrows()])
    others = known.pivot(index=SETTING, columns="correction", values="cell").fillna("")
    own = lines[lines["correction"] == DEFAULT[2]].set_index(SETTING).loc[others.index].reset_index()
    table = pd.DataFrame(
        {
            "Setting": [_setting(line) for _, line in own.iterrows()],
            "Nats a token": own["nats"],
            f"`{DEFAULT[2]}` minus on-policy": [said(line) for _, line in own.iterrows()],
            **{f"`{name}` less `{DEFAULT[2]}`": others[name].to_list() for name in others},
        }
    )
    return table.sort_values("Nats a token")


def beside_stack(runs: pd.DataFrame, curves: pd.DataFrame, stack: pd.DataFrame) -> pd.DataFrame:
    """A row a bound: where the laboratory and the real stack end, on-policy, and by how much less from older tokens.

    Seeds of the two share nothing: runs are paired with the on-policy run of their own side, and the sides compared by
    their pooled deviation. Accuracies are those after the last step.
    """
    ended = curves[curves["step"] == curves["steps"]][[*ROW, "accuracy"]]
    usual = (runs["task"] == QUICK_TASK) & (runs["rate_factor"] == 1) & (runs["updates"] == 1)
    kind = runs[["strategy", "correction"]].apply(tuple, axis=1)
    own = runs[usual & kind.isin([(ON_POLICY, "none"), DEFAULT[::2]])]
    laboratory = own.drop(columns="accuracy").merge(ended, on=ROW)
    sides = {}
    for name, own in {"laboratory": laboratory, "real stack": stack}.items():
        same = START if name == "laboratory" else ["seed"]  # what on-policy's run has in common with its pairs
        reached = own[own["staleness"] == "0"][[*same, "accuracy"]].rename(columns={"accuracy": "reached"})
        both = own.merge(reached, on=same)
        ends = both["accuracy"] - both["reached"].where(both["staleness"] != "0", 0.0)
        sides[name] = both.assign(ends=ends).groupby("staleness")
    lines = []
    for staleness in sorted(stack["staleness"].unique()):
        ours, theirs = (sides[name].get_group(staleness) for name in ("laboratory", "real stack"))
        free, apart = len(ours) + len(theirs) - 2, ours["ends"].mean() - theirs["ends"].mean()
        pooled = sum(one["ends"].var() * (len(one) - 1) for one in (ours, theirs)) / free
        half = _t_975(free) * math.sqrt(pooled * (1 / len(ours) + 1 / len(theirs)))
        line = {"Bound": staleness}
        for title, own in {"laboratory": ours, "stack": theirs}.items():
            line |= {f"Seeds, {title}": len(own), f"Ends, {title}": own["ends"].mean()}
            line |= {f"Versions, {title}": own["staleness_mean"].mean(), f"Nats, {title}": own["k3_kl"].mean()}
        within = "no" if abs(apart) > half else "yes" if half <= WITHIN_STACK else "open: the interval is too wide"
        lines.append(line | {"Apart": f"{apart:+.3f} +- {half:.3f}", "Within": within})
    return pd.DataFrame(lines)


def recommendation(lines: pd.DataFrame) -> str:
    """Up to which `max_staleness` `decoupled` is shown to be level with on-policy, and where it fell most."""
    own = lines[(lines["correction"] == DEFAULT[2]) & (lines["strategy"] == DEFAULT[0]) & (lines["seeds"] > 1)]
    own = own.assign(lowest=own[["low", "mean_low"]].min(axis=1))
    level = own[
        (own["seeds"] >= SEEDS) & (own["lowest"] >= -WITHIN) & (own["rate_factor"] == 1) & (own["updates"] == 1)
    ]
    bound, shown = None, level
    for higher in ("4", "8", "16"):
        some = level[(level["staleness"] == higher) & level["task"].isin(JUDGED)]
        if len(some) < len(JUDGED):
            break
        bound, shown = higher, some
    if bound is None:
        return f"No `max_staleness` has {SEEDS} seeds of each task that are level with on-policy.\n"
    lowest, nats = own.loc[own["gap"].idxmin()], shown["nats"].max()
    lost = "all" if lowest["lost"] == lowest["seeds"] else lowest["lost"]
    return (
        f"With `{DEFAULT[2]}` and tokens up to `async_dapo.max_staleness={bound}` old, accuracy ended at most "
        f"{-shown['lowest'].min():.3f} below on-policy's in each of {len(JUDGED)} tasks (95 %, {SEEDS} seeds); k3 was "
        f"up to {nats:.2g} nats a token. The worst of all its settings, {lowest['rate_factor']:g} times the learning "
        f"rate and `max_staleness={lowest['staleness']}`, ended {-lowest['gap']:.2f} below on-policy in the mean of "
        f"{lowest['seeds']} seeds; {lost} of them were lost.\n"
    )


def _setting(line: pd.Series) -> str:
    bound = "" if line["staleness"] == "0" else f", bound {line['staleness']}"
    strategy = "" if line["strategy"] == DEFAULT[0] else f", {line['strategy']}"
    rate = "" if line["rate_factor"] == 1 else f", {line['rate_factor']:g}x rate"
    updates = "" if line["updates"] == 1 else f", {line['updates']} updates"
    return f"{line['task']}{bound}{strategy}{rate}{updates}"


def _are_usual(lines: pd.DataFrame) -> pd.Series:
    jobs = lines[JOB].itertuples(index=False)
    own = (steps == usual_steps(TASKS[task], rate_factor=rate, updates=updates) for task, rate, updates, steps in jobs)
    return pd.Series(own, index=lines.index, dtype=bool)


def targets(lines: pd.DataFrame) -> pd.DataFrame:
    """The worst setting of each target, or of the best correction where the target leaves it open."""
    usual = lines[(lines["strategy"] == DEFAULT[0]) & (lines["rate_factor"] == 1) & (lines["updates"] == 1)]
    default = usual[usual["task"].isin(JUDGED) & (usual["correction"] == DEFAULT[2])]
    old = usual[(usual["task"] == OLDEST) & usual["staleness"].isin(["8", "16"])]
    whole = [own for _, own in old.groupby("correction") if len(own) == 2]
    best = max(whole, key=lambda own: own["low"].fillna(-math.inf).min(), default=old.iloc[:0])
    rows = [
        ("defaults, three tasks", -0.02, default[default["staleness"] == DEFAULT[1]], len(JUDGED)),
        ("staleness up to 4, `decoupled`, three tasks", -WITHIN, default[default["staleness"] == "4"], len(JUDGED)),
        (f"staleness up to 8 and 16, tail 25, best correction of {len(whole)}, none lost", -0.05, best, 2),
    ]
    return pd.DataFrame(
        {"Target": f"Accuracy minus on-policy's: {name}", "Limit": limit} | _judged(limit, own, settings)
        for name, limit, own, settings in rows
    )


def _judged(limit: float, own: pd.DataFrame, settings: int) -> dict[str, str]:
    if own.empty:
        return {"Measured, worst": "", "Met": "not run yet"}
    worst, whole = own.loc[own["low"].fillna(-math.inf).idxmin()], own[own["seeds"] >= SEEDS]
    fails, holds = ((whole["high"] < limit) | (whole["lost"] > 0)).any(), (whole["low"] >= limit).all()
    enough = f"{SEEDS} seeds in {len(whole)} of {settings} settings"
    where = f"{worst['task']}, {worst['staleness']}, `{worst['correction']}`, {worst['nats']:.2g} nats"
    met = "no" if fails else enough if len(whole) < settings else "yes" if holds else "open: the interval is too wide"
    return {"Measured, worst": f"{said(worst)} ({where})", "Met": met}
