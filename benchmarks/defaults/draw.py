"""The table and the figure of `systems.csv`: python -m benchmarks.defaults draws them after it has measured.

Ratios are seconds of a step over those of another system, in the same setting; a mean over settings is geometric. Per
token in the loss, not per step: shorter answers, and tokens withheld as too stale, make a step easier. Rows that do not
say how many are withheld count none.
"""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.support.tables import markdown
from recipe.async_dapo_lab.plan.candidates import Bound, bound_of

from .run import COLOCATE, COLOCATE_ALIKE, DEFAULT, EQUAL_SHARE, HOST_KV, KINDS
from .settings import GRIDS, SETTINGS, Setting

ASSETS = Path(__file__).parents[2] / "assets"
FOLDER = ASSETS / "defaults"
ENGINES_2025 = FOLDER / "published_2025"  # has every baseline and every hand-tuned row
SYNC = "verl sync"
TITLES = {
    "setting": "Setting",
    "sync_s": "verl sync [s]",
    "colocate_s": "verl colocate_async [s]",
    "baseline": "Best baseline",
    "default_s": "Default [s]",
    "of_sync": "Of sync",
    "of_colocate": "Of colocate_async",
    "of_baseline": "Of best baseline",
    "of_tuned_same": "Of best tuned partial",
    "of_tuned": "Of best tuned of any strategy",
    "of_bound": "Bound of rollout",
    "bound_of_sync": "Bound, of sync",
    "bound_of_colocate": "Bound, of colocate_async",
    "off_policy": "Off-policy",
    "off_policy_colocate": "Off-policy, colocate_async",
    "equal_of_colocate": "Of colocate_async, equal off-policy share",
    "off_policy_equal": "Off-policy then",
}
RATIOS = [
    "of_sync",
    "of_colocate",
    "of_baseline",
    "of_tuned_same",
    "of_tuned",
    "of_bound",
    "bound_of_sync",
    "bound_of_colocate",
    "equal_of_colocate",
]
HEADLINE = ("8 x H100", "64 x H100", "512 x H100")  # how the names of README's settings begin
UNBOUND = (
    "512 x H200, B=256"  # engines have room for 16 batches: the bound, which counts throughput alone, says nothing
)
REFERENCE_SETTING = "8 x H200, B=512, n=16, 16K"  # the planner's own; how its name in the grid begins
REFERENCE = {
    "system": "System",
    "per_batch_s": "Step [s]",
    "speed_up": "Speed-up",
    "idle": "Idle",
    "waste": "Waste",
    "off_policy": "Off-policy",
}
GROUPS = {"up to 128 servers": 128, "all": 512}  # of the means; the largest number of servers


def read_systems(folder: Path = FOLDER) -> pd.DataFrame:
    return _per_batch(pd.read_csv(folder / "systems.csv"))


def _per_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """Every simulated row, with its seconds per batch of natural length in the loss."""
    rows = rows[rows["step_s"].notna()]
    in_loss = 1 - rows["withheld_tok"].fillna(0) / rows["trained_tok"]
    return rows.assign(per_batch_s=rows["step_s"] / rows["length_bias"] / in_loss)


@cache
def bound_in(setting: Setting) -> Bound:
    return bound_of(setting.scenario())


@cache
def summary(folder: Path, *, bounds: bool = True) -> pd.DataFrame:
    """A row a setting: seconds per batch of natural length in the loss, and ratios of them. Several pages show parts of
    it: nobody changes it.

    Settings that have not been run far enough have none.

    Args:
        bounds: whether the columns of the bound hold numbers, which takes 0.1 s a setting.
    """
    rows, grid = read_systems(folder), folder.name if folder.name in GRIDS else ""
    lines = []
    for setting in (replace(one, grid=grid) for one in SETTINGS):
        own = rows[rows["setting"] == str(setting)].set_index("system")
        if not {DEFAULT, SYNC, COLOCATE} <= set(own.index):
            continue
        base, tuned = own[own["kind"] == "baseline"], own[own["kind"] == "tuned"]
        default, seconds = own.loc[DEFAULT], own["per_batch_s"]
        same = tuned[tuned["strategy"] == "partial"]
        bound_rollout_s = bound_in(setting).rollout_s if bounds else math.nan
        bound_s = bound_rollout_s + (default["step_s"] - default["rollout_s"]) / default["length_bias"]
        lines.append(
            {
                "setting": str(setting),
                "sync_s": seconds[SYNC],
                "colocate_s": seconds[COLOCATE],
                "baseline": base["per_batch_s"].idxmin(),
                "baseline_s": base["per_batch_s"].min(),
                "default_s": seconds[DEFAULT],
                "of_sync": seconds[DEFAULT] / seconds[SYNC],
                "of_colocate": seconds[DEFAULT] / seconds[COLOCATE],
                "of_baseline": seconds[DEFAULT] / base["per_batch_s"].min(),
                "of_tuned_same": seconds[DEFAULT] / same["per_batch_s"].min(),
                "tuned": tuned["per_batch_s"].idxmin() if len(tuned) else "",
                "of_tuned": seconds[DEFAULT] / tuned["per_batch_s"].min(),
                "of_bound": bound_rollout_s / (default["rollout_s"] / default["length_bias"]),
                "bound_of_sync": bound_s / seconds[SYNC],
                "bound_of_colocate": bound_s / seconds[COLOCATE],
                "off_policy": default["off_policy"],
                "off_policy_colocate": own.loc[COLOCATE, "off_policy"],
                "equal_of_colocate": seconds.get(EQUAL_SHARE, float("nan")) / seconds[COLOCATE],
                "of_alike": seconds[DEFAULT] / seconds.get(COLOCATE_ALIKE, float("nan")),
                "of_host_kv": seconds.get(HOST_KV, float("nan")) / seconds[COLOCATE],
                "off_policy_equal": own["off_policy"].get(EQUAL_SHARE, float("nan")),
            }
        )
    return pd.DataFrame(lines)


def as_table(lines: pd.DataFrame) -> pd.DataFrame:
    """Titled, with the geometric means of ratios as the last row."""
    means = {"setting": "geometric mean"} | {column: geometric_mean(lines[column]) for column in RATIOS}
    return pd.concat([lines, pd.DataFrame([means])])[list(TITLES)].rename(columns=TITLES)


def means_table() -> pd.DataFrame:
    """Geometric means of the committed results: of the smaller settings, of all, and of those whose bound says
    something."""
    lines = summary(FOLDER)
    servers = lines["setting"].str.extract(r"^(\d+) x")[0].astype(int)
    named = {name: lines[servers <= largest] for name, largest in GROUPS.items()}
    named[f"without {UNBOUND}"] = lines[~lines["setting"].str.startswith(UNBOUND)]
    columns = [*RATIOS[:2], "equal_of_colocate", *RATIOS[2:-1]]
    columns = [column for column in columns if not column.startswith("of_tuned")]  # of fewer settings
    rows = [
        {"Settings": name, "Count": len(some)} | {TITLES[column]: geometric_mean(some[column]) for column in columns}
        for name, some in named.items()
    ]
    return pd.DataFrame(rows)


def grids_table() -> pd.DataFrame:
    """Geometric means of each grid that was simulated, over the settings that all of them have."""
    titles = {column: TITLES[column] for column in ("of_sync", "of_colocate", "equal_of_colocate")}
    titles |= {"of_alike": "Of colocate_async without the pass", "of_host_kv": "Of colocate_async, KV in host memory"}
    found = [grid for grid in GRIDS if (FOLDER / grid / "systems.csv").exists()]
    grids = {grid: summary(FOLDER / grid, bounds=False) for grid in found}
    shared = set.intersection(*(set(lines["setting"]) for lines in grids.values()))
    rows = [
        {"Grid": f"{grid.replace('_', ' ') or '16 updates, as above'}, {len(shared)} settings"}
        | {title: geometric_mean(lines[lines["setting"].isin(shared)][column]) for column, title in titles.items()}
        for grid, lines in grids.items()
    ]
    return pd.DataFrame(rows)


def reference_table() -> pd.DataFrame:
    """Rows of the planner's own setting, in its seconds: of a step of natural length in the loss."""
    rows = read_systems()
    rows = rows[rows["setting"].str.startswith(REFERENCE_SETTING) & (rows["system"] != EQUAL_SHARE)]
    sync_s = rows.loc[rows["system"] == SYNC, "per_batch_s"].item()
    rows = rows.assign(speed_up=sync_s / rows["per_batch_s"])
    rows = rows.sort_values("kind", key=lambda kinds: kinds.map(KINDS.index), kind="stable")
    return rows[list(REFERENCE)].rename(columns=REFERENCE)


README_TITLES = {
    "setting": "Simulated cluster and job",
    "of_sync": "Over verl sync",
    "of_colocate": "Over colocate_async",
    "equal_of_colocate": "Over colocate_async, at equal off-policy share",
}


def headline_table() -> pd.DataFrame:
    """Three clusters of README: this recipe's steps over those of verl's modes."""
    lines = summary(FOLDER)
    lines = lines[lines["setting"].str.startswith(HEADLINE)]
    return lines[list(README_TITLES)].rename(columns=README_TITLES)


def clusters_table() -> pd.DataFrame:
    """README's clusters in seconds, with their off-policy shares and what drafts would save."""
    lines = summary(FOLDER)
    lines = lines[lines["setting"].str.startswith(HEADLINE)]
    titles = {
        "setting": "Cluster and job",
        "sync_s": "sync [s]",
        "colocate_s": "colocate_async [s]",
        "default_s": "This recipe [s]",
        "off_policy": "Off-policy share",
        "off_policy_colocate": "That of colocate_async",
    }
    return lines[list(titles)].rename(columns=titles)


def range_of_all() -> str:
    """The best and the worst setting, as they are and at equal off-policy share."""
    lines = summary(FOLDER)
    free, equal = (f"{lines[key].min():.2f} to {lines[key].max():.2f}" for key in ("of_colocate", "equal_of_colocate"))
    count = lines["equal_of_colocate"].notna().sum()
    among = "" if count == len(lines) else f" in {count} of them"
    said = (
        f"Over colocate_async {free} in all {len(lines)} simulated settings, {equal} at equal off-policy share{among}."
    )
    return f"{said}\n"


def geometric_mean(values: pd.Series) -> float:
    known = values.dropna()
    return float(known.prod() ** (1 / len(known))) if len(known) else float("nan")


def draw(folder: Path) -> str:
    """Write `summary.csv` and `defaults.png`. Returns the table, of settings with verl's modes and the default."""
    lines = summary(folder)
    if lines.empty:
        return "No setting has rows of verl sync, verl colocate_async and the default yet: no table, no figure."
    lines.round(4).to_csv(folder / "summary.csv", index=False)
    figure = Figure(figsize=(9, 0.45 * len(lines) + 1.5), layout="constrained")
    axis = figure.subplots()
    rows = range(len(lines))
    marks = {
        "verl sync": (lines["sync_s"], "#9c9c9c", "s"),
        "verl colocate_async": (lines["colocate_s"], "#efb118", "s"),
        "default": (lines["default_s"], "#4269d0", "o"),
    }
    for name, (seconds, colour, shape) in marks.items():
        axis.plot(seconds / lines["sync_s"], rows, shape, color=colour, label=name, markersize=6)
    axis.set_yticks(list(rows), lines["setting"])
    axis.invert_yaxis()
    axis.set_xlim(0, 1.05)
    axis.set_xlabel("seconds of a step over verl sync's")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(folder / "defaults.png", dpi=120)
    return markdown(as_table(lines))
