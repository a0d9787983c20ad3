"""Accuracy over steps with each correction: `learning.png` in `assets/corrections`, from its `runs.csv`.

python -m benchmarks.corrections.draw
"""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from benchmarks.corrections.exact import FOLDER
from benchmarks.corrections.summary import ON_POLICY, read_runs
from benchmarks.support import learning_curve

COLOURS = {"none": "#9a9a9a", "bypass": "#d9691e", "decoupled": "#9dc3e6", "balance": "#1f5fa8"}


def draw() -> None:
    runs = read_runs()
    stale = runs[runs["strategy"] != ON_POLICY]
    panels = list(stale.groupby(["learning_rate", "strategy", "pool"], sort=False))
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4 * len(panels), 3.6), sharey=True, layout="constrained", squeeze=False
    )
    for axis, ((rate, strategy, pool), rows) in zip(axes[0], panels, strict=True):
        same = (runs["strategy"] == ON_POLICY) & (runs["learning_rate"] == rate) & runs["seed"].isin(rows["seed"])
        _draw_mean(axis, runs[same], ON_POLICY, "black")
        for correction, own in rows.groupby("correction", sort=False):
            _draw_mean(axis, own, str(correction), COLOURS[str(correction)])
        axis.set_title(f"{strategy}, pool {pool}, rate {rate:g}, seeds: {rows['seed'].nunique()}", fontsize=9)
        axis.set_xlabel("step")
        axis.legend(fontsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("validation accuracy, mean of seeds")
    figure.savefig(FOLDER / "learning.png", dpi=120, metadata={"Software": None})


def _draw_mean(axis: Axes, rows: pd.DataFrame, name: str, colour: str) -> None:
    points = [point for text in rows["validations"] for point in learning_curve.read(text)]
    curve = pd.DataFrame(points, columns=["step", "accuracy"]).groupby("step")["accuracy"].mean()
    axis.plot(curve.index, curve, color=colour, label=name)


if __name__ == "__main__":
    draw()
