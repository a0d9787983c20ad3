"""Accuracy over steps with each correction: `learning.png` in `assets/corrections`, from its `runs.csv`.

python -m benchmarks.corrections.draw
"""

import math

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from benchmarks.corrections.exact import FOLDER
from benchmarks.corrections.summary import ON_POLICY, read_runs
from benchmarks.support import learning_curve

A_LINE = 3  # panels
COLOURS = {"none": "#9a9a9a", "bypass": "#d9691e", "decoupled": "#9dc3e6", "balance": "#1f5fa8"}
COLOURS |= {"clipped": "#2f7d3b", "sequence_mask": "#7d5ba6"}  # tried once


def draw() -> None:
    runs = read_runs()
    stale = runs[runs["strategy"] != ON_POLICY]
    panels = list(stale.groupby(["task", "machine", "learning_rate", "strategy", "pool"], sort=False))
    lines = math.ceil(len(panels) / A_LINE)
    size = (4 * A_LINE, 3.6 * lines)
    figure, axes = plt.subplots(lines, A_LINE, figsize=size, sharey=True, layout="constrained", squeeze=False)
    for axis, ((task, machine, rate, strategy, pool), rows) in zip(axes.flat, panels, strict=False):
        job = {"strategy": ON_POLICY, "task": task, "machine": machine, "learning_rate": rate}
        same = (runs[list(job)] == pd.Series(job)).all(axis="columns")
        _draw_mean(axis, runs[same & runs["seed"].isin(rows["seed"])], ON_POLICY, "black")
        for correction, own in rows.groupby("correction", sort=False):
            _draw_mean(axis, own, str(correction), COLOURS[str(correction)])
        seeds = rows["seed"].nunique()
        axis.set_title(f"{task}, machine {machine}, {strategy}, pool {pool}, rate {rate:g}, seeds: {seeds}", fontsize=8)
        axis.set_xlabel("step")
        axis.legend(fontsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for first in axes[:, 0]:
        first.set_ylabel("validation accuracy, mean of seeds")
    figure.savefig(FOLDER / "learning.png", dpi=120, metadata={"Software": None})


def _draw_mean(axis: Axes, rows: pd.DataFrame, name: str, colour: str) -> None:
    points = [point for text in rows["validations"] for point in learning_curve.read(text)]
    curve = pd.DataFrame(points, columns=["step", "accuracy"]).groupby("step")["accuracy"].mean()
    axis.plot(curve.index, curve, color=colour, label=name)


if __name__ == "__main__":
    draw()
