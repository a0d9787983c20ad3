"""Draws how often a prompt's groups are trained, by its pass rate: exact, by enumeration; or runs' learning curves.

python -m benchmarks.selection.draw                    # n = 16, into assets/selection
python -m benchmarks.selection.draw outputs/selection  # what `python -m benchmarks.selection` has measured, into there
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.selection import summary
from benchmarks.support.tables import markdown

COSTS = {"validations": "generated tokens", "validations_cpu": "CPU seconds of all processes"}
PANELS = {
    "trained_share": "groups that are trained [share]",
    "update_weight": "expected size of a group's update",
    "answers": "answers generated a group",
}


def draw_frequencies() -> None:
    frequencies = summary.frequencies(np.linspace(0.005, 0.995, 199).round(3).tolist())
    summary.FOLDER.mkdir(parents=True, exist_ok=True)
    frequencies.round(5).to_csv(summary.FOLDER / "training_frequency.csv", index=False)
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axis, (column, title) in zip(axes, PANELS.items(), strict=True):
        for name, rows in frequencies.groupby("screening", sort=False):
            axis.plot(rows["pass_rate"], rows[column], label=name)
        axis.set_title(title)
        axis.set_xlabel("pass rate of the prompt")
        axis.set_ylim(bottom=0)
    axes[0].legend(fontsize=8)
    figure.savefig(summary.FOLDER / "training_frequency.png", dpi=120)


def draw_curves(folder: Path) -> None:
    """Mean accuracy over runs, by generated tokens and by CPU seconds: a line for each row, two panels for each job."""
    runs = summary.read_runs(folder)
    jobs = runs[runs["validations"].notna()].groupby(summary.JOB, sort=False)
    figure, axes = plt.subplots(len(jobs), 2, figsize=(10, 3.6 * len(jobs)), layout="constrained", squeeze=False)
    for line, (job, rows) in zip(axes, jobs, strict=True):
        for name, own in rows.groupby("row", sort=False):
            for axis, (column, cost) in zip(line, COSTS.items(), strict=True):
                curve = summary.mean_curve(own[column])
                axis.plot(curve["cost"], curve["accuracy"], label=name)
                axis.set_xlabel(cost)
        line[0].set_title("{}, prompts: {}, {} steps".format(*job))
        line[0].set_ylabel("validation accuracy")
        line[0].legend(fontsize=8)
    figure.savefig(folder / "learning_curves.png", dpi=120)
    print(markdown(summary.runs_table(runs)))


if __name__ == "__main__":
    if sys.argv[1:]:
        draw_curves(Path(sys.argv[1]))
    else:
        draw_frequencies()
