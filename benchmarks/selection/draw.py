"""Draws runs' learning curves: python -m benchmarks.selection.draw outputs/selection"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

from benchmarks.selection import summary
from benchmarks.support.tables import markdown

COSTS = {"validations": "generated tokens", "validations_cpu": "CPU seconds of all processes"}


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
    draw_curves(Path(sys.argv[1]))
