"""What `runs.csv` of a closed study (benchmarks/README.md) comes to: who is fastest within a share of older tokens."""

from pathlib import Path

import pandas as pd

from benchmarks.defaults.draw import geometric_mean, read_systems
from recipe.async_dapo_lab.plan.candidates import COLOCATE_WITH_DRAFTS

FOLDER = Path(__file__).parents[2] / "assets" / "frontier"
DRAFTS = ", drafts"  # at the end of a name
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)
BIAS = 0.03  # of trained over natural length, as the planner's limit for what it recommends
OURS, DRAFTING, BASELINE = "this recipe", "this recipe, with drafts", "baseline"
TARGETS = {OURS: 0.9, DRAFTING: 0.8}


def read() -> pd.DataFrame:
    """Rows of both files with seconds of a million tokens in the loss; none that prefers short or long answers."""
    own = pd.read_csv(FOLDER / "runs.csv")
    own["whose"] = [DRAFTING if system.endswith(DRAFTS) else OURS for system in own["system"]]
    own.loc[own["system"] == COLOCATE_WITH_DRAFTS, "whose"] = COLOCATE_WITH_DRAFTS
    grid = read_systems()
    grid["whose"] = [BASELINE if kind == "baseline" else OURS for kind in grid["kind"]]
    rows = pd.concat([grid[grid["setting"].isin(own["setting"])], own], ignore_index=True)
    rows["s_per_mtok"] = 1e6 * rows["step_s"] / (rows["trained_tok"] - rows["withheld_tok"].fillna(0))
    return rows[(rows["length_bias"] - 1).abs() <= BIAS]


def table() -> pd.DataFrame:
    """The fastest of each kind within a share, over the fastest baseline within it: means over settings."""
    rows, lines = read(), []
    for share in SHARES:
        within = rows[rows["off_policy"] <= share]
        best = within.loc[within.groupby(["setting", "whose"])["s_per_mtok"].idxmin()]
        seconds = best.pivot(index="setting", columns="whose", values="s_per_mtok")
        line = {"Simulated: off-policy share at most": share}
        for whose in TARGETS:
            ratio = seconds[whose] / seconds[BASELINE]
            line |= {f"{whose}, over the best baseline": geometric_mean(ratio), f"{whose}, worst": ratio.max()}
        lines.append(line)
    return pd.DataFrame(lines)
