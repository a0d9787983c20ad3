"""The figure of frontier.csv: python -m benchmarks.plan.frontier_figure"""

import pandas as pd
from matplotlib.figure import Figure

from .summary import FOLDER

COLOURS = ("#4269d0", "#ff725c", "#6cc5b0")


def draw() -> None:
    """Step over the defaults', by the share of tokens of older versions: a line a cluster, through the caps."""
    frame = pd.read_csv(FOLDER / "frontier.csv")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for (setting, rows), colour in zip(frame.groupby("setting", sort=False), COLOURS, strict=True):
        rows = rows.assign(ratio=rows["step_s"] / rows.loc[rows["variant"] == "defaults", "step_s"].item())
        caps = rows[rows["variant"].str.startswith("at most") | (rows["variant"] == "defaults")]
        kept, fresh = caps.sort_values("off_policy"), rows[rows["variant"] == "nothing kept"]
        axis.plot(kept["off_policy"], kept["ratio"], "o-", color=colour, label=setting)
        axis.plot(fresh["off_policy"], fresh["ratio"], "x", color=colour, markersize=9)
    axis.plot([], [], "kx", markersize=9, label="nothing kept: discard, drain")
    axis.set_xlabel("share of trained tokens of older versions")
    axis.set_ylabel("step over the defaults', simulated")
    axis.set_xlim(0, 1)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(FOLDER / "frontier.png", dpi=120)


if __name__ == "__main__":
    draw()
