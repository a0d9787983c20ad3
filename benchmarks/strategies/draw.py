"""Draws the strategies side by side from `runs.csv` in a folder, or in the project's own.

python -m benchmarks.strategies.draw [FOLDER]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from benchmarks.strategies import summary

PANELS = {
    "rollout_s_mean": "rollout of a step [s]",
    "waste": "tokens thrown away [share]",
    "accuracy_after": "accuracy at the end",
}


def draw(runs: pd.DataFrame, path: Path) -> None:
    jobs = runs.groupby(summary.JOB, sort=False)
    figure, axes = plt.subplots(len(jobs), 3, figsize=(12, 3.2 * len(jobs)), layout="constrained", squeeze=False)
    for line, ((task, _), job) in zip(axes, jobs, strict=True):
        names = list(job["strategy"].unique())
        for axis, (column, title) in zip(line, PANELS.items(), strict=True):
            means = job.groupby("strategy", sort=False)[column].mean()
            axis.barh(range(len(names)), means, color="tab:blue", alpha=0.5)
            axis.plot(job[column], job["strategy"].map(names.index), "k.", markersize=4)
            axis.set_yticks(range(len(names)), names if axis is line[0] else [""] * len(names))
            axis.invert_yaxis()
            axis.set_title(title)
        line[0].set_ylabel(str(task).replace(", ", "\n"))
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else summary.FOLDER
    draw(summary.read_runs(folder), folder / "strategies.png")
