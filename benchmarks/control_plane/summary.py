"""What `control_plane.csv` comes to."""

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parents[2] / "assets" / "control_plane"
SIZE = ["in_flight", "servers"]
ACTORS = ("load balancer", "coordinator", "verl router", "verl replay buffer")
CPU_MS = "cpu_ms_per_trajectory"


def read_runs() -> pd.DataFrame:
    runs = pd.read_csv(FOLDER / "control_plane.csv")
    runs["actor"] = pd.Categorical(runs["actor"], ACTORS, ordered=True)
    return runs


def actors_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Medians over repetitions of an actor at a size."""
    titles = {"actor": "Actor", "in_flight": "In flight", "servers": "Servers"}
    measures = {CPU_MS: "CPU per trajectory [ms]", "peak_memory_mb": "Peak memory [MB]"}
    medians = runs.groupby(["actor", *SIZE], observed=True)[list(measures)].median()
    return medians.reset_index().rename(columns=titles | measures)


def growth_table(runs: pd.DataFrame) -> pd.DataFrame:
    """CPU per trajectory at the most expensive size over that at the cheapest."""
    at_size_ms = runs.groupby(["actor", *SIZE], observed=True)[CPU_MS].median()
    over_sizes = at_size_ms.groupby("actor", observed=True)
    growth = (over_sizes.max() / over_sizes.min()).rename("Largest over smallest")
    return growth.reset_index().rename(columns={"actor": "Actor"})
