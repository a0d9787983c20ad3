"""Draws how often a prompt's groups are trained, by its pass rate: exact, by enumeration. n = 16.

python -m benchmarks.selection.draw
"""

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.selection import summary

PANELS = {
    "trained_share": "groups that are trained [share]",
    "update_weight": "expected size of a group's update",
    "answers": "answers generated a group",
}


def main() -> None:
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


if __name__ == "__main__":
    main()
