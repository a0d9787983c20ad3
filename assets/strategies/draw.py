"""Draws the strategies side by side from `runs.csv`, which `python -m benchmarks.strategies` wrote.

python -m assets.strategies.draw
"""

import statistics
from collections import defaultdict
from pathlib import Path

from assets.runs import Row, read, values

FOLDER = Path(__file__).parent
HEAD = (
    "Task",
    "Strategy, stop rule",
    "Seeds",
    "Steps",
    "Accuracy after",
    "Rollout, mean [s]",
    "Step, median [s]",
    "Waste",
    "Length trained / dispatched",
    "Off-policy tokens",
)
Runs = dict[str, dict[str, list[Row]]]


def read_runs() -> Runs:
    """task -> strategy -> its runs, in the order of the file."""
    runs: Runs = defaultdict(lambda: defaultdict(list))
    for row in read(FOLDER / "runs.csv"):
        runs[row["task"]][row["strategy"]].append(row)
    return runs


def mean_and_spread(numbers: list[float], digits: int) -> str:
    """Mean, and the standard deviation if there are several runs."""
    text = f"{statistics.mean(numbers):.{digits}f}"
    return text if len(numbers) == 1 else f"{text} +- {statistics.stdev(numbers):.{digits}f}"


def table_rows() -> list[tuple[str, ...]]:
    return [
        (
            task,
            name,
            str(len(rows)),
            rows[0]["steps"],
            mean_and_spread(values(rows, "accuracy_after"), 3),
            mean_and_spread(values(rows, "rollout_s_mean"), 2),
            mean_and_spread(values(rows, "step_s"), 2),
            mean_and_spread(values(rows, "waste"), 3),
            mean_and_spread(values(rows, "trained_to_dispatched"), 3),
            mean_and_spread(values(rows, "off_policy"), 2),
        )
        for task, strategies in read_runs().items()
        for name, rows in strategies.items()
    ]


def draw() -> None:
    import matplotlib.pyplot as plt

    runs = read_runs()
    figure, axes = plt.subplots(len(runs), 3, figsize=(12, 3.2 * len(runs)), layout="constrained", squeeze=False)
    panels = (
        ("rollout_s_mean", "rollout of a step [s]"),
        ("waste", "tokens thrown away [share]"),
        ("accuracy_after", "accuracy at the end"),
    )
    for line, (task, strategies) in zip(axes, runs.items(), strict=True):
        for axis, (column, title) in zip(line, panels, strict=True):
            for place, rows in enumerate(strategies.values()):
                numbers = values(rows, column)
                axis.barh(place, statistics.mean(numbers), color="tab:blue", alpha=0.5)
                axis.plot(numbers, [place] * len(numbers), "k.", markersize=4)
            axis.set_yticks(range(len(strategies)), list(strategies) if axis is line[0] else [""] * len(strategies))
            axis.invert_yaxis()
            axis.set_title(f"{task}: {title}")
    figure.savefig(FOLDER / "strategies.png", dpi=120)


if __name__ == "__main__":
    draw()
