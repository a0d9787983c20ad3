"""The figure, and the table, of `runs.csv` in a folder, or of the project's own runs.

python -m benchmarks.engine_bound.draw [FOLDER]

`benchmarks.engine_bound` wrote it. A system's row is that of its runs with the setting's own speed-up; the runs with
others show whether the speed-up matters.
"""

import statistics
import sys
from pathlib import Path

from benchmarks.engine_bound.systems import SETTINGS
from benchmarks.support.runs_file import Row, read
from benchmarks.support.tables import median_and_range, table, values

FOLDER = Path(__file__).parents[2] / "assets" / "engine_bound"
BASE = "verl colocate_async"
HEAD = (
    "Setting",
    "System",
    "Runs",
    "Step [s]",
    "Of verl async",
    "Of the bound",
    "Rollout [s]",
    "Tokens/s/GPU",
    "Idle",
    "Waste",
    "Off-policy",
    "Staleness",
    "Length bias",
    "Planned [s]",
    "Valid",
)


def by_system(folder: Path, setting: str) -> dict[str, list[Row]]:
    """System -> its runs with the setting's own speed-up, in the order of the file."""
    systems: dict[str, list[Row]] = {}
    for row in read(folder / "runs.csv"):
        if row["setting"] == setting and float(row["speedup"]) == SETTINGS[setting].speedup:
            systems.setdefault(row["system"], []).append(row)
    return dict(sorted(systems.items(), key=lambda item: (not item[0].startswith("verl"), item[0])))


def table_rows(folder: Path = FOLDER) -> list[list[str]]:
    rows = []
    for setting in SETTINGS:
        systems = by_system(folder, setting)
        base_s = statistics.median(values(systems[BASE], "step_s")) if BASE in systems else None
        rows += [_table_row(setting, name, runs, base_s) for name, runs in systems.items()]
    return rows


def _table_row(setting: str, name: str, runs: list[Row], base_s: float | None) -> list[str]:
    step_s = values(runs, "step_s")
    return [
        setting,
        name,
        str(len(runs)),
        median_and_range(step_s, 0),
        f"{statistics.median(step_s) / base_s:.2f}" if base_s else "",
        median_and_range(values(runs, "bound_share"), 2),
        median_and_range(values(runs, "rollout_s"), 0),
        median_and_range(values(runs, "tok_per_s_per_gpu"), 0),
        median_and_range(values(runs, "idle"), 2),
        median_and_range(values(runs, "waste"), 2),
        median_and_range(values(runs, "off_policy"), 2),
        median_and_range(values(runs, "staleness"), 2),
        median_and_range(values(runs, "length_bias"), 2),
        median_and_range(values(runs, "planned_step_s"), 0),
        "yes" if all(run["is_valid"] == "True" for run in runs) else "no",
    ]


def draw(folder: Path) -> None:
    """A panel a setting: the rollout and the rest of a step, the planner's prediction, and the bound."""
    from matplotlib.figure import Figure

    settings = [setting for setting in SETTINGS if by_system(folder, setting)]
    figure = Figure(figsize=(6.5 * len(settings), 4.2), layout="constrained")
    for axis, setting in zip(figure.subplots(1, len(settings), squeeze=False)[0], settings, strict=True):
        systems = by_system(folder, setting)
        names = list(systems)
        rollout_s = [statistics.median(values(runs, "rollout_s")) for runs in systems.values()]
        step_s = [statistics.median(values(runs, "step_s")) for runs in systems.values()]
        planned_s = [statistics.median(values(runs, "planned_step_s")) for runs in systems.values()]
        axis.barh(names, rollout_s, color="#4269d0", label="rollout")
        rest_s = [whole - part for whole, part in zip(step_s, rollout_s, strict=True)]
        axis.barh(names, rest_s, left=rollout_s, color="#6cc5b0", label="training and weights")
        axis.plot(planned_s, names, "k|", markersize=12, label="planned")
        bound_s = statistics.median(values([run for runs in systems.values() for run in runs], "bound_s"))
        axis.axvline(bound_s, color="#ff725c", label="bound")
        axis.invert_yaxis()
        axis.set_xlabel("seconds of a step, rehearsed")
        axis.set_title(setting)
    axis.legend()
    figure.savefig(folder / "engine_bound.png", dpi=110)


if __name__ == "__main__":
    drawn = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    draw(drawn)
    print(table(HEAD, table_rows(drawn)), end="")
