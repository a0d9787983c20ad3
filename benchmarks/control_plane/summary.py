"""The tables of `control_plane.csv` in a folder, or in the project's own: python -m benchmarks.control_plane.summary"""

import sys
from pathlib import Path

import pandas as pd

from benchmarks.support.tables import markdown, spread

FOLDER = Path(__file__).parents[2] / "assets" / "control_plane"
SIZE = ["in_flight", "servers"]
ACTORS = ("load balancer", "coordinator", "verl router", "verl replay buffer")
CPU_MS = "cpu_ms_per_trajectory"


def read_runs(folder: Path = FOLDER) -> pd.DataFrame:
    runs = pd.read_csv(folder / "control_plane.csv")
    runs["actor"] = pd.Categorical(runs["actor"], ACTORS, ordered=True)
    return runs


def actors_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Medians over repetitions of an actor at a size, and the range of its CPU time."""
    groups = runs.groupby(["actor", *SIZE], observed=True)
    frame = pd.concat(
        [
            groups.size().rename("Runs"),
            spread(groups, CPU_MS, "CPU per trajectory [ms]"),
            groups["per_s"].median().rename("Trajectories/s"),
            groups["peak_memory_mb"].median().rename("Peak memory [MB]"),
        ],
        axis="columns",
    )
    return frame.reset_index().rename(columns={"actor": "Actor", "in_flight": "In flight", "servers": "Servers"})


def growth_table(runs: pd.DataFrame) -> pd.DataFrame:
    """CPU per trajectory at the most expensive size over that at the cheapest."""
    at_size_ms = runs.groupby(["actor", *SIZE], observed=True)[CPU_MS].median()
    over_sizes = at_size_ms.groupby("actor", observed=True)
    growth = (over_sizes.max() / over_sizes.min()).rename("Largest over smallest")
    return growth.reset_index().rename(columns={"actor": "Actor"})


def comparison_table(runs: pd.DataFrame) -> pd.DataFrame:
    """CPU per trajectory of the recipe's two actors together, over that of verl's two."""
    at_size_ms = runs.groupby([*SIZE, "actor"], observed=True)[CPU_MS].median().unstack()
    ratio = at_size_ms[list(ACTORS[:2])].sum(axis="columns") / at_size_ms[list(ACTORS[2:])].sum(axis="columns")
    frame = ratio.rename("Both of the recipe over both of verl").reset_index()
    return frame.rename(columns={"in_flight": "In flight", "servers": "Servers"})


if __name__ == "__main__":
    measured = read_runs(Path(sys.argv[1]) if sys.argv[1:] else FOLDER)
    for make in (actors_table, growth_table, comparison_table):
        print(markdown(make(measured)))
