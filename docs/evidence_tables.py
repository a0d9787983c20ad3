"""Tables of the evidence pages: the columns that a reader needs, of what `benchmarks/` makes of the runs."""

from pathlib import Path

import pandas as pd

from benchmarks.between_rounds import summary as between_rounds
from benchmarks.control_plane import summary as control_plane
from benchmarks.corrections import summary as corrections
from benchmarks.defaults import draw as defaults
from benchmarks.engine_bound import summary as engine_bound
from benchmarks.faults import summary as faults
from benchmarks.plan import summary as plan
from benchmarks.selection import summary as selection
from benchmarks.side_by_side import summary as side_by_side
from benchmarks.strategies import summary as strategies
from benchmarks.support.tables import markdown

QUICK_START = Path(__file__).parents[1] / "assets" / "quickstart" / "runs.csv"
GRID = [
    "Setting",
    "Default [s]",
    "Of sync",
    "Of colocate_async",
    "Of separate_async",
    "Of colocate_async, equal off-policy share",
    "Bound, of colocate_async",
    "Off-policy",
    "Off-policy, colocate_async",
]
RATIOS = [
    "Tail",
    "System",
    "Over",
    "Repetitions",
    "Step [s]",
    "The other's step [s]",
    "Ratio",
    "Lowest of one repetition",
    "Highest of one",
]
SIDE_BY_SIDE = [
    "Tail",
    "System",
    "Waste",
    "Staleness",
    "Accuracy after",
    "CPU per trained trajectory [ms]",
]
ENGINES = [
    "Setting",
    "System",
    "Step [s]",
    "Of verl async",
    "Of the bound",
    "Off-policy",
    "Length bias",
    "Over planned",
    "Valid",
]
LEARNED = ["Seeds", "Staleness", "Accuracy at the end", "Less on-policy's at the end", "ESS ratio"]
STRATEGIES = ["Task", "Strategy, stop rule", "Accuracy after", "Waste", "Length trained / dispatched"]
ACTORS = ["Actor", "In flight", "Servers", "CPU per trajectory [ms]", "Peak memory [MB]"]
LEARNED_AT = 6e-4  # learning rate of the shown trainings
REFERENCE_ROWS = (
    "verl sync",
    "verl colocate_async",
    "verl separate_async, 2 of 8 train",
    "dynamic sampling",
    "async DAPO 2025",
    "APRIL",
    "CoPRIS 1135",
    "default",
    "default, stale KV",
    "partial first_completed 1024",
    "discard drain 1024",
)


def grid() -> pd.DataFrame:
    """Ratios to verl's modes, of each setting."""
    return defaults.results_table()[GRID]


def reference_setting() -> pd.DataFrame:
    table = plan.reference_table()
    return table[table["System"].isin(REFERENCE_ROWS)]


def frontier() -> pd.DataFrame:
    """A row a cluster: with each cap, the step over the defaults', and the off-policy share in brackets."""
    table = plan.frontier_table()
    shown = table[table["Variant"].str.startswith("at most") | (table["Variant"] == "nothing kept")]
    cells = [f"{row.iloc[2]:.2f} ({row['Off-policy']:.2f})" for _, row in shown.iterrows()]
    wide = shown.assign(cell=cells).pivot(index="Setting", columns="Variant", values="cell")
    return wide.loc[shown["Setting"].unique(), list(shown["Variant"].unique())].reset_index()


def side_by_side_ratios() -> pd.DataFrame:
    """On one engine, over verl's two modes, in the repetitions that both have."""
    table = side_by_side.ratios_table(side_by_side.read_runs())
    bases = table["Over"].isin([side_by_side.SYNC, side_by_side.SHORT_POLL])
    table = table[bases & ~table["System"].astype(str).str.startswith("verl sync")][RATIOS]
    return table.assign(**{column: table[column].where(table["Repetitions"] > 1) for column in RATIOS[-2:]})


def side_by_side_measures() -> pd.DataFrame:
    runs = side_by_side.read_runs()
    table = side_by_side.measures_table(runs).merge(side_by_side.costs_table(runs), on=["Tail", "Engines", "System"])
    return table[SIDE_BY_SIDE]


def engines() -> pd.DataFrame:
    return engine_bound.engine_bound_table(engine_bound.read_runs())[ENGINES]


def struck() -> str:
    """What became of a run: a row for each part, over all moments, with the longest time."""
    runs = faults.read_runs()
    runs["seconds"] = runs["seconds"].astype(float)
    cells = runs.groupby(["stack", "who", "how"], sort=False).apply(_in_words, include_groups=False).rename("cell")
    wide = cells.reset_index().pivot(index=["stack", "who"], columns="how", values="cell").fillna("")
    wide = wide.reindex(columns=[faults.KILL, faults.STOP, faults.CUT, faults.CUT_FOR_A_WHILE]).reset_index()
    return f"{markdown(wide.rename(columns={'stack': 'Stack', 'who': 'Part'}))}\n{faults.totals(runs)}"


def _in_words(cells: pd.DataFrame) -> str:
    """Of one part, struck in one way at several moments."""
    ends = " or ".join(sorted({_WORDS.get(outcome, outcome) for outcome in cells["outcome"]}))
    return f"{ends}, {cells['seconds'].max():.0f} s ({len(cells)})"


def soak() -> str:
    return markdown(faults.soak_table(faults.read_soak()))


_WORDS = {"continued": "goes on", "ended": "ends"}


def corrections_exact() -> pd.DataFrame:
    """Error under `partial`: a row a correction, a column a drift between versions."""
    table = corrections.exact_table()
    wide = table.pivot(index="Correction", columns="KL", values="Error, partial")
    wide.columns = [f"KL {kl:.3g}" for kl in wide.columns]
    return wide.loc[table["Correction"].unique()].reset_index()


def corrections_learned() -> pd.DataFrame:
    table = corrections.learning_table(corrections.read_runs())
    shown = (table["learning_rate"] == LEARNED_AT) & table["strategy"].isin([corrections.ON_POLICY, "partial"])
    table = table[shown].assign(
        pool=lambda rows: rows["pool"].astype(int),
        correction=lambda rows: rows["correction"].where(rows["strategy"] == "partial", corrections.ON_POLICY),
    )
    titles = {"task": "Task", "machine": "Machine", "pool": "Pool", "correction": "Correction"}
    columns = [
        *titles.values(),
        "Seeds",
        "Staleness",
        "Accuracy at the end",
        "Less on-policy's at the end",
        "ESS ratio",
    ]
    return table.rename(columns=titles)[columns]


def selection_measured() -> pd.DataFrame:
    table = selection.runs_table(selection.read_runs())
    titles = {
        "task": "Task",
        "row": "Row",
        "tokens a trained group, first steps, over without": "Tokens a trained group, first steps",
        "tokens a trained group, over without": "Tokens a trained group",
        "CPU seconds to midway, over without": "CPU seconds to midway",
        "accuracy after": "Accuracy after",
        "filtered a trained group, last third": "Filtered a trained group, last third",
    }
    return table[list(titles)].rename(columns=titles)


def strategies_measured() -> pd.DataFrame:
    table = strategies.strategies_table(strategies.read_runs())
    table["Task"] = table["Task"].str.partition(",")[0]
    table = table[table["Seeds"] > 1]
    return table[STRATEGIES]


def actors() -> pd.DataFrame:
    """At the smallest and the largest size."""
    table = control_plane.actors_table(control_plane.read_runs())
    table = table[table["In flight"].isin([table["In flight"].min(), table["In flight"].max()])]
    return table[ACTORS]


def between() -> pd.DataFrame:
    table = between_rounds.between_table(between_rounds.read_runs())
    return table[["Trajectories", "Tokens travel by", "Through the coordinator [MB]", "Engines wait [s]"]]


def quick_start() -> pd.DataFrame:
    """Of its default length: that of the last run."""
    runs = pd.read_csv(QUICK_START)
    runs = runs[runs["steps"] == runs["steps"].iloc[-1]]
    titles = {"steps": "Steps", "wall_s": "Wall [s]", "step_median_s": "Step, median [s]"}
    titles |= {"peak_memory_gb": "Peak memory [GB]", "accuracy_before": "Accuracy before"}
    return runs.rename(columns=titles | {"accuracy_after": "Accuracy after"})[[*titles.values(), "Accuracy after"]]


def published() -> str:
    """Speed-ups and shares, and whatever misses; then how many of all rows are met."""
    table = plan.published_table()
    is_met = table["Target"] == "met"
    shown = table[~is_met | ~table["What"].str.contains(r"\[s\]")]
    said = f"{is_met.sum()} of {len(table)} rows are within 15 %; seconds that are met are in the file."
    return f"{markdown(shown)}\n{said}\n"


def speedups() -> pd.DataFrame:
    return engine_bound.speedups_table(engine_bound.read_all()).drop(columns=["Setting", "Of verl sync"])
