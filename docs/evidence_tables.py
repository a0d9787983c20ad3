"""Tables and sentences of the evidence pages: the summary of what `benchmarks/` makes of the runs.

Rows of single runs stay in the files of `assets/`.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from benchmarks.defaults import draw as defaults
from benchmarks.faults import summary as faults
from benchmarks.learning import draw as learning
from benchmarks.side_by_side import summary as side_by_side
from benchmarks.support.tables import markdown
from recipe.async_dapo_lab.gpu_check import __main__ as gpu_check
from recipe.async_dapo_lab.gpu_check import minute

ASSETS = Path(__file__).parents[1] / "assets"
MINUTE = ASSETS / "gpu" / "minute_on_a_cpu.json"
QUICK_START = ASSETS / "quickstart" / "runs.csv"
GRID = {
    "setting": "Simulated setting",
    "of_sync": "Of sync",
    "of_colocate": "Of colocate_async",
    "equal_of_colocate": "Of colocate_async, at equal share",
}
SIDES = {side_by_side.SYNC: "Of sync", side_by_side.SHORT_POLL: "Of colocate_async"}
STEP, RATE = ["ratio", "lowest", "highest"], ["rate", "rate_lowest", "rate_highest"]
DRAFTED = "partial, drafts"
EQUAL_LIMITS = (
    ("Step over colocate_async, short pause", "partial", side_by_side.SHORT_POLL, STEP, 0.7),
    ("Step over colocate_async, short pause, with the same options", "partial", side_by_side.NO_PASS, STEP, 0.8),
    ("Step over colocate_async, short pause", DRAFTED, side_by_side.SHORT_POLL, STEP, 0.6),
    ("Step over colocate_async, short pause, with the same drafts", DRAFTED, side_by_side.DRAFTS, STEP, 0.85),
)
DRAFT_LIMITS = (
    ("Step over colocate_async, short pause", DRAFTED, side_by_side.SHORT_POLL, STEP, 0.72),
    ("Trained tokens/s over colocate_async, short pause", DRAFTED, side_by_side.SHORT_POLL, RATE, 1.4),
    ("Trained tokens/s over colocate_async with the same drafts", DRAFTED, side_by_side.DRAFTS, RATE, 1.15),
)
SEPARATE_PARTIAL = "separate, partial"  # of `side_by_side`
REFERENCE_ROWS = (
    "verl sync",
    "verl colocate_async",
    "dynamic sampling",
    "async DAPO 2025",
    "APRIL",
    "CoPRIS 1135",
    "default",
    "discard drain 1024",
)


def grid() -> str:
    """Ratios of the default to verl's modes in each setting, their geometric means, and what else a reader needs."""
    lines = defaults.summary(defaults.FOLDER)
    means = defaults.means_table().iloc[1:]  # of all, and of those whose bound says something
    means = means.rename(columns={"Settings": "setting"} | {defaults.TITLES[key]: key for key in GRID})
    means["setting"] = "geometric mean, " + means["setting"]
    table = pd.concat([lines, means])[list(GRID)].rename(columns=GRID)
    bound = defaults.means_table().iloc[-1][defaults.TITLES["bound_of_colocate"]]
    ahead = lines["off_policy"] - lines["off_policy_colocate"]
    return (
        f"{markdown(table)}\n"
        f"- **Off-policy**: {lines['off_policy'].min():.2f} to {lines['off_policy'].max():.2f} of the tokens; above "
        f"colocate_async's share in {(ahead > 0).sum()} settings, by {ahead.max():.2f} at most.\n"
        f"- **Bound**, all engines full: {bound:.3f} of colocate_async's step, in the last row. "
        "Only [cheaper tokens](drafts.md) pass it.\n"
    )


def first_minute() -> pd.DataFrame:
    """A whole run of `gpu_check --minute` on a CPU, with the limits that its checks have on a GPU."""
    limits = {part.name: (part.limit_s, str(part.finding)) for part in minute.PARTS.values()}
    limits |= {gpu_check.training.CASES[0].name: (gpu_check.STEP_LIMIT_S, "13")}
    limits |= {gpu_check.SEPARATE: (gpu_check.SEPARATE_LIMIT_S, "4, 5")}
    checks = [one for one in json.loads(MINUTE.read_text())["checks"] if one["check"] in limits]
    return pd.DataFrame(
        {
            "Check": one["check"],
            "Finding": limits[one["check"]][1],
            "Limit on a GPU [s]": f"{limits[one['check']][0]:.0f}",
            "Took here [s]": f"{one['seconds']:.1f}",
            "Verdict": one["status"],
            "Found": one["found"],
        }
        for one in checks
    )


def separate_measured() -> str:
    """Engines on GPUs of their own, on the real stack (one each for engine and trainer): over verl's such mode."""
    runs = side_by_side.read_runs()
    runs = runs[runs["tail"] == side_by_side.HEADLINE_TAIL].astype({"system": str})
    ratios = side_by_side.ratios(runs).astype({"system": str, "base": str}).set_index(["system", "base"])
    ours = ratios.loc[(SEPARATE_PARTIAL, side_by_side.SEPARATE)]
    staleness = runs.groupby("system")["staleness"].median()
    return (
        f"Measured on two CPU cores, {ours['repetitions']:.0f} repetitions: {ours['step_s']:.2f} s a step, "
        f"{ours['ratio']:.3f} of verl separate_async's ({ours['lowest']:.3f} to {ours['highest']:.3f}); staleness "
        f"{staleness[SEPARATE_PARTIAL]:.2f}, verl's {staleness[side_by_side.SEPARATE]:.2f}.\n"
    )


def reference_setting() -> pd.DataFrame:
    table = defaults.reference_table()
    return table[table["System"].isin(REFERENCE_ROWS)]


def side_by_side_table() -> str:
    """On one engine, in turns with the trainer: the step over those of verl's two modes, in brackets; then how runs of
    the default differ.
    """
    runs = side_by_side.read_runs()
    runs = runs[~runs["system"].str.contains("separate")]
    cell = ["Tail", "Engines", "System"]
    steps = side_by_side.seconds_table(runs)[[*cell, "Runs", "Step [s]"]]
    table = steps.merge(side_by_side.measures_table(runs)[[*cell, "Waste", "Staleness", "Accuracy after"]], on=cell)
    ratios = side_by_side.ratios_table(runs).astype({"System": str})
    over = ratios.set_index([*cell, "Over"]).sort_index()
    table = table.astype({"System": str})
    for base, title in SIDES.items():
        pairs = over.xs(base, level="Over")
        said = pairs["Ratio"].map("{:.3f}".format) + pairs["The other's step [s]"].map(" ({:.2f})".format)
        is_ours = ~table["System"].str.startswith("verl sync")
        keys = pd.MultiIndex.from_frame(table[cell])
        table.insert(len(table.columns) - 3, title, pd.Series(said.reindex(keys).to_numpy()).where(is_ours))
    ours = ratios[(ratios["System"] == "partial") & (ratios["Tail"] == side_by_side.HEADLINE_TAIL)].set_index("Over")
    spread = ", ".join(
        f"{ours.loc[base, 'Lowest of one repetition']:.3f} to {ours.loc[base, 'Highest of one']:.3f} {title.lower()}"
        for base, title in SIDES.items()
    )
    return f"{markdown(table.drop(columns='Engines'))}\nIn single repetitions of `partial` at tail 8: {spread}.\n"


def on_policy_measured() -> str:
    """Without an old token, on the real stack: over verl sync with the short pause, in all pairs, counted or not."""
    runs = side_by_side.read_runs(file="on_policy.csv")
    measures = ["Waste", "Accuracy after"]
    table = _in_turns(runs, side_by_side.SYNC_SHORT_POLL, title="sync", measures=measures, most_drift=1.0)
    return f"{markdown(table)}\n{_bounds_of(runs)}.\n"


def drafts_measured() -> str:
    """With drafts, on the real stack: targets, over verl's colocate_async without and with the same; all systems."""
    return _with_limits("drafts.csv", DRAFT_LIMITS)


def equals_measured() -> str:
    """With verl's own way to leave log-probs out, and with drafts, on the real stack: in all pairs, counted or not."""
    return _with_limits("one_update.csv", EQUAL_LIMITS, most_drift=1.0)


def _with_limits(
    file: str,
    limits: Sequence[tuple[str, str, str, list[str], float]],
    most_drift: float = side_by_side.MOST_DRIFT,
) -> str:
    """Our systems over verl's, in turns, beside their limits; then all systems."""
    runs = side_by_side.read_runs(file=file)
    ratios = side_by_side.ratios(runs, most_drift).astype({"system": str, "base": str})
    over = ratios.set_index(["system", "base"]).sort_index()
    rows = [
        (what, ours, int(pair["tail"]), int(pair["repetitions"]), limit, *pair[columns], _is_met(pair, limit, columns))
        for what, ours, base, columns, limit in limits
        for _, pair in over.loc[[(ours, base)]].iterrows()
    ]
    titles = ["Target", "System", "Tail", "Pairs", "Limit", "Measured", "Lowest", "Highest", "Met"]
    targets = pd.DataFrame(rows, columns=titles)
    measures = ["Off-policy", "Accuracy after"]
    base = side_by_side.SHORT_POLL
    systems = _in_turns(runs, base, title="colocate_async", measures=measures, most_drift=most_drift)
    return f"{markdown(targets)}\n{markdown(systems)}\n{_bounds_of(runs)}.\n"


def _is_met(pair: pd.Series, limit: float, columns: list[str]) -> str:
    measured = pair[columns[0]]
    if pd.isna(measured):
        return "no pair counts"
    return "yes" if (measured <= limit if columns is STEP else measured >= limit) else "no"


def _in_turns(
    runs: pd.DataFrame, base: str, *, title: str, measures: list[str], most_drift: float = side_by_side.MOST_DRIFT
) -> pd.DataFrame:
    """Systems that ran in turns: a step over the base's, within one repetition."""
    cell = ["Tail", "System"]
    over = side_by_side.ratios_table(runs, most_drift=most_drift).astype({"System": str, "Over": str})
    over = over[over["Over"] == base]
    lowest = f"Of {title}, lowest"
    ratios = {"Lowest of one repetition": lowest, "Median within one": "Median", "Highest of one": "Highest"}
    table = side_by_side.seconds_table(runs)[[*cell, "Runs", "Step [s]"]].astype({"System": str})
    table = table.merge(over[[*cell, *ratios]].rename(columns=ratios), on=cell, how="left")
    return table.merge(side_by_side.measures_table(runs)[[*cell, *measures]], on=cell)


def _bounds_of(runs: pd.DataFrame) -> str:
    bounds = runs[side_by_side.BOUNDS]
    ratios = side_by_side.ratios(runs)
    counted = ratios.loc[~ratios["system"].isin(side_by_side.BASES), "repetitions"].sum()
    return (
        f"Full engines made {bounds.min(axis=None):.0f} to {bounds.max(axis=None):.0f} tokens/s meanwhile; pairs whose "
        f"bounds agree within {100 * side_by_side.MOST_DRIFT:.0f} %, and so count: {counted}"
    )


def struck() -> str:
    """What became of a run: a row for each part, over all moments, with the longest time."""
    runs = faults.read_runs()
    runs["seconds"] = runs["seconds"].astype(float)
    killed = runs[runs["how"] == faults.KILL].groupby("who").apply(_row, include_groups=False)
    stopped, cut, shortly = (runs[runs["how"] == how] for how in (faults.STOP, faults.CUT, faults.CUT_FOR_A_WHILE))
    return (
        f"{markdown(killed.rename_axis('Killed').reset_index())}\n"
        f"With a part stopped for 30 s the run {_ends(stopped)} within {stopped['seconds'].max():.0f} s. With the "
        f"network cut for 10 s it {_ends(shortly)}; cut for good, it {_ends(cut)} after {cut['seconds'].max():.0f} s. "
        f"{faults.totals(runs)}"
    )


def _row(cells: pd.DataFrame) -> pd.Series:
    """Of one part, killed at several moments."""
    return pd.Series({"The run": _ends(cells), "Longest [s]": f"{cells['seconds'].max():.0f}"})


def _ends(cells: pd.DataFrame) -> str:
    return " or ".join(sorted({_WORDS.get(outcome, outcome) for outcome in cells["outcome"]}))


_WORDS = {"continued": "goes on", "ended": "ends"}


@cache
def _learned() -> dict[str, str]:
    return learning.tables()


def learned(name: str) -> str:
    """A part of what the learning laboratory's runs come to."""
    return _learned()[name]


def quick_start() -> pd.DataFrame:
    """Of its default length: that of the last run."""
    runs = pd.read_csv(QUICK_START)
    runs = runs[runs["steps"] == runs["steps"].iloc[-1]]
    titles = {"steps": "Steps", "wall_s": "Wall [s]", "step_median_s": "Step, median [s]"}
    titles |= {"peak_memory_gb": "Peak memory [GB]", "accuracy_before": "Accuracy before"}
    return runs.rename(columns=titles | {"accuracy_after": "Accuracy after"})[[*titles.values(), "Accuracy after"]]
