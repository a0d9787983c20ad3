"""The figure of `runs.csv` in a folder, or in the project's own: python -m benchmarks.side_by_side.draw [FOLDER]

Prints the tables of seconds and ratios, too. `python -m docs.generate` writes those of the project's own runs.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from benchmarks.side_by_side import summary


def draw(runs: pd.DataFrame, path: Path) -> None:
    cells = runs.groupby(summary.CELL)
    names = list(runs["system"].cat.categories)
    width = 3.2 * len(cells) + 2
    figure, axes = plt.subplots(1, len(cells), figsize=(width, 3.2), layout="constrained", squeeze=False, sharey=True)
    for axis, ((tail, engines), cell) in zip(axes[0], cells, strict=True):
        for name, own in cell.groupby("system", observed=True):
            place = names.index(name)
            step_s, rollout_s = own["step_s_mean"], own["rollout_s_mean"]
            axis.barh(place, step_s.median(), color="tab:blue", alpha=0.3, label="step" if place == 0 else None)
            label = "of it rollout" if place == 0 else None
            axis.barh(place, rollout_s.median(), color="tab:blue", alpha=0.6, label=label)
            axis.plot(step_s, [place] * len(step_s), "k.", markersize=4)
        axis.set_xlabel("seconds: runs (points), median")
        axis.set_title(f"p99/median {tail}, engines: {engines}")
    axes[0][0].set_yticks(range(len(names)), names)
    axes[0][0].invert_yaxis()
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper right")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else summary.FOLDER
    measured = summary.read_runs(folder)
    draw(measured, folder / "side_by_side.png")
    for table in (summary.seconds_table(measured), summary.ratios_table(measured)):
        print(table.round(2).to_string(index=False))
