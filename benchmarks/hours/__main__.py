"""GPU hours to the accuracy at which on-policy training ends: `python -m benchmarks.hours [--output outputs/hours]`

Simulates the steps that `planned.csv` does not have yet, then writes `hours.csv` and `hours.png`; see `summary.py`.
"""

import argparse
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.learning.summary import JUDGED
from recipe.async_dapo_lab.command_line import path

from .planned import SYNC, modes, run
from .summary import curves_of, hours, planned

COLOURS = ("#9c9c9c", "#efb118", "#a463f2", "#97bbf5", "#9c6b4e", "#4269d0", "#ff725c", "#6cc5b0")


def draw(steps: pd.DataFrame, path: Path) -> None:
    """A panel a task: mean accuracy over GPU hours, where verl sync's run takes 1."""
    figure = Figure(figsize=(4.2 * len(JUDGED), 3.4), layout="constrained")
    shown = [mode for mode in modes() if mode.learned]
    for axis, task in zip(figure.subplots(1, len(JUDGED)), JUDGED, strict=True):
        for mode, colour in zip(shown, COLOURS, strict=True):
            curves = curves_of(task, mode.learned or "")
            at = steps.loc[mode.name, "of_sync"] * curves.index / curves.index.max()
            mean, error = curves.mean(axis=1), curves.sem(axis=1)
            axis.plot(at, mean, color=colour, label=mode.name, linestyle="--" if mode.name == SYNC else "-")
            axis.fill_between(at, mean - 2 * error, mean + 2 * error, color=colour, alpha=0.15, linewidth=0)
        axis.set(title=task, xlabel="GPU hours over those of verl sync's run", ylim=(0, 1))
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("accuracy, mean of seeds +- 2 errors")
    figure.axes[-1].legend(fontsize=7, loc="lower right")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=path, default=Path("outputs", "hours"))
    folder = parser.parse_args().output
    run(folder / "planned.csv")
    hours(folder / "planned.csv").to_csv(folder / "hours.csv", index=False, float_format="%.4g")
    draw(planned(folder / "planned.csv"), folder / "hours.png")


if __name__ == "__main__":
    main()
