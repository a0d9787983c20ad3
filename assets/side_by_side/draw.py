"""Table and figure of what `benchmarks.side_by_side` (runs.csv) and `benchmarks.full_engines` (bound.csv) wrote.

python -m assets.side_by_side.draw

Seconds of a run are means over its steps: some systems train on two steps' groups after every second rollout, and a
median would see one kind of step only. Seconds of a system are medians over its runs.
"""

import csv
import statistics
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).parent
SYNC, FAST_ASYNC = "verl sync", "verl colocate_async, 0.05 s poll"
HEAD = (
    "Tail, engines",
    "System",
    "Runs",
    "Step [s]",
    "Of verl sync",
    "Of verl async 0.05 s",
    "Rollout [s]",
    "Trained tokens/s",
    "Of the bound",
    "Engine idle",
    "Waste",
    "Off-policy",
    "Accuracy after",
    "Seconds to midway",
)
Row = dict[str, str]
Cell = tuple[str, str]  # tail, engines


def read(name: str) -> list[Row]:
    """The rows of a benchmark's file; none before it has run."""
    path = FOLDER / name
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def by_cell() -> dict[Cell, dict[str, list[Row]]]:
    """(tail, engines) -> system -> its runs, in the order of the file."""
    cells: dict[Cell, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in read("runs.csv"):
        cells[row["tail"], row["engines"]][row["system"]].append(row)
    return dict(sorted(cells.items(), key=lambda item: tuple(map(int, item[0]))))


def values(rows: list[Row], column: str) -> list[float]:
    return [float(row[column]) for row in rows if row[column]]


def accuracies(row: Row) -> list[tuple[float, float]]:
    """(training seconds so far, accuracy) at every validation."""
    points = (point.split(":") for point in row["validations"].split())
    return [(float(seconds), float(accuracy)) for seconds, accuracy in points]


def seconds_to(target: float, row: Row) -> float | None:
    """Training seconds until the accuracy is reached, on straight lines between validations; None if it is not."""
    for (before_s, before), (after_s, after) in pairwise(accuracies(row)):
        if before >= target:
            return before_s
        if after >= target:
            return before_s + (after_s - before_s) * (target - before) / (after - before)
    return None


def share_of_bound(row: Row, full_tok_per_s: float) -> float | None:
    """Trained tokens per second over those that the same step would have if its rollout ran on full engines.

    The step keeps its time outside the rollout and generates the same tokens. None for a system that does not count
    the tokens it generates.
    """
    if not row["generated_tok"]:
        return None
    step_s, rollout_s = float(row["step_s_mean"]), float(row["rollout_s_mean"])
    return (step_s - rollout_s + float(row["generated_tok"]) / full_tok_per_s) / step_s


def median_and_range(numbers: list[float], digits: int) -> str:
    if not numbers:
        return ""
    text = f"{statistics.median(numbers):.{digits}f}"
    return text if len(numbers) == 1 else f"{text} ({min(numbers):.{digits}f}-{max(numbers):.{digits}f})"


def table_rows() -> list[tuple[str, ...]]:
    bounds = defaultdict(list)
    for row in read("bound.csv"):
        bounds[row["tail"], row["engines"]].append(float(row["tok_per_s"]))
    lines = []
    for cell, systems in by_cell().items():
        step_s = {name: statistics.median(values(runs, "step_s_mean")) for name, runs in systems.items()}
        ends = [accuracies(run) for run in systems[SYNC]]
        midway = statistics.mean(accuracy for run in ends for _, accuracy in (run[0], run[-1]))
        for name, runs in systems.items():
            reached = [seconds_to(midway, run) for run in runs]
            of_bound = [share_of_bound(run, statistics.median(bounds[cell])) for run in runs] if bounds[cell] else []
            lines.append(
                (
                    f"{cell[0]}, {cell[1]}",
                    name,
                    str(len(runs)),
                    median_and_range(values(runs, "step_s_mean"), 2),
                    f"{step_s[name] / step_s[SYNC]:.2f}",
                    f"{step_s[name] / step_s[FAST_ASYNC]:.2f}" if FAST_ASYNC in step_s else "",
                    median_and_range(values(runs, "rollout_s_mean"), 2),
                    median_and_range(values(runs, "trained_tok_per_s"), 0),
                    median_and_range([share for share in of_bound if share is not None], 2),
                    median_and_range(values(runs, "engine_idle"), 2),
                    median_and_range(values(runs, "waste"), 2),
                    median_and_range(values(runs, "off_policy"), 2),
                    median_and_range([accuracies(run)[-1][1] for run in runs], 2),
                    "not reached by all"
                    if None in reached
                    else median_and_range([s for s in reached if s is not None], 0),
                )
            )
    return lines


def draw() -> None:
    import matplotlib.pyplot as plt

    cells = by_cell()
    figure, axes = plt.subplots(1, len(cells), figsize=(5 * len(cells) + 2, 3.4), layout="constrained", squeeze=False)
    for axis, ((tail, engines), systems) in zip(axes[0], cells.items(), strict=True):
        for place, runs in enumerate(systems.values()):
            rollout_s = statistics.median(values(runs, "rollout_s_mean"))
            step_s = statistics.median(values(runs, "step_s_mean"))
            axis.barh(place, step_s, color="tab:blue", alpha=0.3, label="step" if place == 0 else None)
            axis.barh(place, rollout_s, color="tab:blue", alpha=0.6, label="of it rollout" if place == 0 else None)
            axis.plot(values(runs, "step_s_mean"), [place] * len(runs), "k.", markersize=4)
        axis.set_yticks(range(len(systems)), list(systems) if axis is axes[0][0] else [""] * len(systems))
        axis.invert_yaxis()
        axis.set_xlabel("seconds, mean of a run (points), median of runs (bars)")
        axis.set_title(f"response length p99/median {tail}, engines: {engines}")
    axes[0][-1].legend()
    figure.savefig(FOLDER / "side_by_side.png", dpi=120)


if __name__ == "__main__":
    draw()
