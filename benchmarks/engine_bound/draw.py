"""The figure, and the table, of `runs.csv` in a folder, or of the project's own runs.

python -m benchmarks.engine_bound.draw [FOLDER]

`benchmarks.engine_bound` wrote it.
"""

import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.engine_bound.summary import FOLDER, engine_bound_table, read_runs
from benchmarks.support.tables import markdown


def draw(runs: pd.DataFrame, folder: Path) -> None:
    """A panel a setting: the rollout and the rest of a step, the planner's prediction, and the bound."""
    settings = runs["setting"].unique()
    figure = Figure(figsize=(6.5 * len(settings), 4.2), layout="constrained")
    for axis, setting in zip(figure.subplots(1, len(settings), squeeze=False)[0], settings, strict=True):
        of_setting = runs[runs["setting"] == setting]
        median = of_setting.groupby("system", sort=False)[["rollout_s", "step_s", "planned_step_s"]].median()
        axis.barh(median.index, median["rollout_s"], color="#4269d0", label="rollout")
        rest_s = median["step_s"] - median["rollout_s"]
        axis.barh(median.index, rest_s, left=median["rollout_s"], color="#6cc5b0", label="training and weights")
        axis.plot(median["planned_step_s"], median.index, "k|", markersize=12, label="planned")
        axis.axvline(of_setting["bound_s"].median(), color="#ff725c", label="bound")
        axis.invert_yaxis()
        axis.set_xlabel("seconds of a step, rehearsed")
        axis.set_title(setting)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(folder / "engine_bound.png", dpi=110)


if __name__ == "__main__":
    drawn = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    rows = read_runs(drawn)
    draw(rows, drawn)
    print(markdown(engine_bound_table(rows)), end="")
