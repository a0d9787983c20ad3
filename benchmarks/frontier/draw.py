"""The figure of the frontier, and who is fastest at which share of off-policy tokens."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.defaults.draw import geometric_mean, read_systems
from recipe.async_dapo_lab.plan.candidates import COLOCATE_WITH_DRAFTS

from .run import CLUSTERS, DRAFTS

FOLDER = Path(__file__).parents[2] / "assets" / "frontier"
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)
BIAS = 0.03  # of trained over natural length, as the planner's limit for what it recommends
OURS, DRAFTING, BASELINE = "this recipe", "this recipe, with drafts", "baseline"
TARGETS = {OURS: 0.9, DRAFTING: 0.8}
COLOURS = {OURS: "#4269d0", DRAFTING: "#6cc5b0", BASELINE: "#9c9c9c"}


def read(folder: Path = FOLDER) -> pd.DataFrame:
    """Rows of both files with seconds of a million tokens in the loss; none that prefers short or long answers."""
    own = pd.read_csv(folder / "runs.csv")
    own["whose"] = [DRAFTING if system.endswith(DRAFTS) else OURS for system in own["system"]]
    own.loc[own["system"] == COLOCATE_WITH_DRAFTS, "whose"] = COLOCATE_WITH_DRAFTS
    grid = read_systems()
    grid["whose"] = [BASELINE if kind == "baseline" else OURS for kind in grid["kind"]]
    rows = pd.concat([grid[grid["setting"].isin(own["setting"])], own], ignore_index=True)
    rows["s_per_mtok"] = 1e6 * rows["step_s"] / (rows["trained_tok"] - rows["withheld_tok"].fillna(0))
    return rows[(rows["length_bias"] - 1).abs() <= BIAS]


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """The fastest of each kind within a share, over the fastest baseline within it: means over settings."""
    lines = []
    for share in SHARES:
        within = rows[rows["off_policy"] <= share]
        best = within.loc[within.groupby(["setting", "whose"])["s_per_mtok"].idxmin()]
        seconds = best.pivot(index="setting", columns="whose", values="s_per_mtok")
        line = {"Simulated: off-policy share at most": share, "Settings": len(seconds)}
        for whose, target in TARGETS.items():
            ratio = seconds[whose] / seconds[BASELINE]
            line |= {f"{whose}, over the best baseline": geometric_mean(ratio), f"{whose}, worst": ratio.max()}
            line[f"{whose}, target"] = target
        lines.append(line)
    return pd.DataFrame(lines)


def committed_table() -> pd.DataFrame:
    return table(read())


def draw(folder: Path) -> pd.DataFrame:
    """Write `frontier.png`. Returns the table."""
    rows = read(folder)
    settings = [one for cluster in CLUSTERS for one in rows["setting"].unique() if one.startswith(cluster)]
    figure = Figure(figsize=(4 * len(settings), 4.2), layout="constrained")
    for axis, setting in zip(figure.subplots(1, len(settings), squeeze=False)[0], settings, strict=True):
        _draw_setting(axis, rows[rows["setting"] == setting])
        axis.set_title(setting, fontsize=8)
    figure.suptitle("Simulated, never run: seconds of a million trained tokens against their off-policy share")
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(folder / "frontier.png", dpi=120)
    return table(rows)


def _draw_setting(axis: Any, rows: pd.DataFrame) -> None:
    for whose, colour in COLOURS.items():
        some = rows[rows["whose"] == whose].sort_values("off_policy")
        axis.plot(some["off_policy"], some["s_per_mtok"], "o", color=colour, markersize=4, label=whose)
        fastest = some["s_per_mtok"].cummin()
        axis.step([*some["off_policy"], 1.0], [*fastest, fastest.min()], where="post", color=colour, linewidth=1)
    drafting = rows[rows["whose"] == COLOCATE_WITH_DRAFTS]
    axis.plot(drafting["off_policy"], drafting["s_per_mtok"], "x", color="#ff725c", label=COLOCATE_WITH_DRAFTS)
    for _, row in rows[rows["whose"] == BASELINE].iterrows():
        name = row["system"].removeprefix("verl ").partition(",")[0]
        axis.annotate(
            name, (row["off_policy"], row["s_per_mtok"]), fontsize=6, xytext=(2, 3), textcoords="offset points"
        )
    axis.set_xlim(-0.02, 1.0)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("off-policy share of tokens")
    axis.grid(alpha=0.3)
