"""Draws the strategies side by side from `runs.csv`, which `python -m benchmarks.strategies` wrote.

python -m benchmarks.strategies.draw
"""

import statistics
from collections import defaultdict
from pathlib import Path

from benchmarks.support.runs_file import Row, read
from benchmarks.support.tables import values

FOLDER = Path(__file__).parents[2] / "assets" / "strategies"
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
Job = tuple[str, str]  # task with what all its runs overrode, steps
Runs = dict[Job, dict[str, list[Row]]]


def read_runs() -> Runs:
    """job -> strategy -> its runs, in the order of the file."""
    runs: Runs = defaultdict(lambda: defaultdict(list))
    for row in read(FOLDER / "runs.csv"):
        task = ", ".join(filter(None, (row["task"], row["overrides"])))
        runs[task, row["steps"]][row["strategy"]].append(row)
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
            steps,
            mean_and_spread(values(rows, "accuracy_after"), 3),
            mean_and_spread(values(rows, "rollout_s_mean"), 2),
            mean_and_spread(values(rows, "step_s"), 2),
            mean_and_spread(values(rows, "waste"), 3),
            mean_and_spread(values(rows, "trained_to_dispatched"), 3),
            mean_and_spread(values(rows, "off_policy"), 2),
        )
        for (task, steps), strategies in read_runs().items()
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
    for line, ((task, _), strategies) in zip(axes, runs.items(), strict=True):
        for axis, (column, title) in zip(line, panels, strict=True):
            for place, rows in enumerate(strategies.values()):
                numbers = values(rows, column)
                axis.barh(place, statistics.mean(numbers), color="tab:blue", alpha=0.5)
                axis.plot(numbers, [place] * len(numbers), "k.", markersize=4)
            axis.set_yticks(range(len(strategies)), list(strategies) if axis is line[0] else [""] * len(strategies))
            axis.invert_yaxis()
            axis.set_title(title)
        line[0].set_ylabel(task.replace(", ", "\n"))
    figure.savefig(FOLDER / "strategies.png", dpi=120)


if __name__ == "__main__":
    draw()
