"""The table of `control_plane.csv` in a folder, or in this one, whose table is the README's.

python -m benchmarks.control_plane.table [FOLDER]
"""

import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.support.runs_file import Row, read
from benchmarks.support.tables import median_and_range, table, values

FOLDER = Path(__file__).parents[2] / "assets" / "control_plane"
ACTORS = ("load balancer", "coordinator", "verl router", "verl replay buffer")
RECIPE, VERL = ACTORS[:2], ACTORS[2:]
CPU_MS = "cpu_ms_per_trajectory"
HEAD = (
    "Actor",
    "Runs",
    "In flight, servers",
    "CPU per trajectory [ms]",
    "Largest over smallest",
    "Trajectories/s",
    "Peak memory [MB]",
)
Setting = tuple[str, str]  # in flight, servers


def table_rows(folder: Path = FOLDER) -> list[Sequence[str]]:
    """One row an actor; cells list the settings in order."""
    rows = read(folder / "control_plane.csv")
    settings = list(dict.fromkeys((row["in_flight"], row["servers"]) for row in rows))
    lines: list[Sequence[str]] = []
    for actor in ACTORS:
        at = [_of(rows, setting, [actor]) for setting in settings]
        medians_ms = [statistics.median(values(runs, CPU_MS)) for runs in at]
        lines.append(
            (
                actor,
                str(min(map(len, at))),
                _listed(map(", ".join, settings)),
                _listed(median_and_range(values(runs, CPU_MS), 2) for runs in at),
                f"{max(medians_ms) / min(medians_ms):.2f}",
                _listed(median_and_range(values(runs, "per_s"), 0) for runs in at),
                _listed(median_and_range(values(runs, "peak_memory_mb"), 0) for runs in at),
            )
        )
    ratios = [_cpu_ms(rows, setting, RECIPE) / _cpu_ms(rows, setting, VERL) for setting in settings]
    both = "both of the recipe over both of verl"
    lines.append((both, "", _listed(map(", ".join, settings)), _listed(f"{ratio:.2f}" for ratio in ratios), "", "", ""))
    return lines


def _of(rows: list[Row], setting: Setting, actors: Iterable[str]) -> list[Row]:
    return [row for row in rows if (row["in_flight"], row["servers"]) == setting and row["actor"] in actors]


def _cpu_ms(rows: list[Row], setting: Setting, actors: Iterable[str]) -> float:
    return sum(statistics.median(values(_of(rows, setting, [actor]), CPU_MS)) for actor in actors)


def _listed(cells: Iterable[str]) -> str:
    texts = list(cells)
    return " / ".join(texts) if any(texts) else ""


if __name__ == "__main__":
    print(table(HEAD, table_rows(Path(sys.argv[1]) if sys.argv[1:] else FOLDER)), end="")
