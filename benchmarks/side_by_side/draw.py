"""The figure, and the table, of `runs.csv` and `bound.csv` in a folder, or in this one, whose table is the README's.

python -m benchmarks.side_by_side.draw [FOLDER]

`benchmarks.side_by_side` wrote them. Seconds of a run are means over its steps: some systems train on two steps' groups
after every second rollout, and a median would see one kind of step only. Seconds of a system are medians over its runs.
"""

import statistics
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from benchmarks.support.runs_file import Row, read
from benchmarks.support.tables import median_and_range, table, values

FOLDER = Path(__file__).parents[2] / "assets" / "side_by_side"
SYNC = "verl sync"
BASES = (SYNC, "verl sync, 0.05 s poll", "verl colocate_async", "verl colocate_async, 0.05 s poll")
HEAD = (
    "Tail, engines",
    "System",
    "Runs",
    "Step [s]",
    "Of verl sync",
    "Of verl sync 0.05 s",
    "Of verl async",
    "Of verl async 0.05 s",
    "Rollout [s]",
    "Trained tokens/s",
    "Of the bound",
    "Engine idle",
    "Waste",
    "Off-policy",
    "Staleness",
    "Accuracy after",
    "Seconds to midway",
)
Cell = tuple[str, str]  # tail, engines


def by_cell(folder: Path) -> dict[Cell, dict[str, list[Row]]]:
    """(tail, engines) -> system, verl's first -> its runs, in the order of the file."""
    cells: dict[Cell, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(read(folder / "runs.csv"), key=lambda row: order_of(row["system"])):
        cells[row["tail"], row["engines"]][row["system"]].append(row)
    return dict(sorted(cells.items(), key=lambda item: tuple(map(int, item[0]))))


def order_of(system: str) -> tuple[bool, str]:
    """Its place: verl's first, the synchronous mode before the asynchronous one."""
    return not system.startswith("verl"), system.replace("colocate_async", "z")


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
    """A step's seconds if its rollout ran on full engines, over its seconds.

    The step keeps its time outside the rollout and generates the same trained and filtered tokens; discarded ones are
    no work done. None for a system that does not count the tokens it generates.
    """
    if not row["generated_tok"]:
        return None
    step_s, rollout_s, waste = float(row["step_s_mean"]), float(row["rollout_s_mean"]), float(row["waste"])
    trained_tok = float(row["trained_tok_per_s"]) * step_s
    useful_tok = float(row["generated_tok"]) - trained_tok * waste / (1 - waste)
    return (step_s - rollout_s + useful_tok / full_tok_per_s) / step_s


def ratio_of_steps(runs: list[Row], base: list[Row]) -> str:
    """Ratio of the medians of step time over the repetitions that both have, and lowest, median and highest of the
    ratios within one: machines differ between repetitions."""
    step_s, base_s = ({row["repetition"]: float(row["step_s_mean"]) for row in rows} for rows in (runs, base))
    shared = step_s.keys() & base_s.keys()
    if runs is base or not shared:
        return "1.00" if shared else ""
    ratio = statistics.median(step_s[at] for at in shared) / statistics.median(base_s[at] for at in shared)
    own = [step_s[at] / base_s[at] for at in shared]
    spread = f" ({min(own):.2f}, {statistics.median(own):.2f}, {max(own):.2f})" if len(own) > 1 else ""
    return f"{ratio:.2f}{spread}"


def seconds_to_midway(runs: list[Row], sync: list[Row]) -> str:
    """Until the accuracy is halfway between the mean of verl sync's first validations and that of its last."""
    if not sync:
        return ""
    midway = statistics.mean(accuracies(run)[place][1] for run in sync for place in (0, -1))
    reached = [seconds_to(midway, run) for run in runs]
    if None in reached:
        return "not reached by all"
    return median_and_range([seconds for seconds in reached if seconds is not None], 0)


def table_rows(folder: Path = FOLDER) -> list[tuple[str, ...]]:
    full_tok_per_s = {
        (row["tail"], row["engines"], row["repetition"]): float(row["tok_per_s"]) for row in read(folder / "bound.csv")
    }
    lines = []
    for cell, systems in by_cell(folder).items():
        for name, runs in systems.items():
            bounds = [(run, full_tok_per_s.get((*cell, run["repetition"]))) for run in runs]
            of_bound = [share_of_bound(run, bound) for run, bound in bounds if bound is not None]
            lines.append(
                (
                    f"{cell[0]}, {cell[1]}",
                    name,
                    str(len(runs)),
                    median_and_range(values(runs, "step_s_mean"), 2),
                    *[ratio_of_steps(runs, systems.get(base, [])) for base in BASES],
                    median_and_range(values(runs, "rollout_s_mean"), 2),
                    median_and_range(values(runs, "trained_tok_per_s"), 0),
                    median_and_range([share for share in of_bound if share is not None], 2),
                    median_and_range(values(runs, "engine_idle"), 2),
                    median_and_range(values(runs, "waste"), 2),
                    median_and_range(values(runs, "off_policy"), 2),
                    median_and_range(values(runs, "staleness"), 2),
                    median_and_range([accuracies(run)[-1][1] for run in runs], 2),
                    seconds_to_midway(runs, systems.get(SYNC, [])),
                )
            )
    return lines


def draw(folder: Path = FOLDER) -> None:
    import matplotlib.pyplot as plt

    cells = by_cell(folder)
    names = sorted({row["system"] for row in read(folder / "runs.csv")}, key=order_of)
    width = 3.2 * len(cells) + 2
    figure, axes = plt.subplots(1, len(cells), figsize=(width, 3.2), layout="constrained", squeeze=False, sharey=True)
    for axis, ((tail, engines), systems) in zip(axes[0], cells.items(), strict=True):
        for name, runs in systems.items():
            rollout_s = statistics.median(values(runs, "rollout_s_mean"))
            step_s = statistics.median(values(runs, "step_s_mean"))
            place = names.index(name)
            axis.barh(place, step_s, color="tab:blue", alpha=0.3, label="step" if place == 0 else None)
            axis.barh(place, rollout_s, color="tab:blue", alpha=0.6, label="of it rollout" if place == 0 else None)
            axis.plot(values(runs, "step_s_mean"), [place] * len(runs), "k.", markersize=4)
        axis.set_xlabel("seconds: runs (points), median")
        axis.set_title(f"p99/median {tail}, engines: {engines}")
    axes[0][0].set_yticks(range(len(names)), names)
    axes[0][0].invert_yaxis()
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper right")
    figure.savefig(folder / "side_by_side.png", dpi=120)


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    draw(chosen)
    print(table(HEAD, table_rows(chosen)), end="")
