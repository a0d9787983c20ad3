"""What `runs.csv` of the fault matrix comes to."""

from pathlib import Path

import pandas as pd

from .cells import CUT, CUT_FOR_A_WHILE, KILL, STOP

FOLDER = Path(__file__).parents[2] / "assets" / "faults"
LEFT = ["processes", "sockets", "shared_memory", "folders"]
# Within which a run ends that does not go on; who waits for a stopped part does so up to the longest of the matrix's
# limits.
END_S = {KILL: 30.0, CUT: 30.0, CUT_FOR_A_WHILE: 30.0, STOP: 120.0}


def read_runs(folder: Path = FOLDER) -> pd.DataFrame:
    return pd.read_csv(folder / "runs.csv", keep_default_na=False, dtype={"resumed_s": str})


def faults_of(row: pd.Series) -> list[str]:
    """What is wrong with a cell."""
    wrong = []
    if row["outcome"] not in ("continued", "ended"):
        wrong.append(row["outcome"])
    if row["outcome"] == "ended" and float(row["seconds"]) > END_S[row["how"]]:
        wrong.append("late")
    if row["named"] == "no":
        wrong.append("not named")
    if row["outcome"] != "continued" and row["resumed_s"] == "never":
        wrong.append("not resumed")
    wrong += [f"{kind} {row[kind]}" for kind in ("lost", "twice") if int(row[kind])]
    return wrong + [f"{kind} left {row[kind]}" for kind in LEFT if row[kind] not in ("", 0, "0")]


def read_soak(folder: Path = FOLDER) -> pd.DataFrame:
    return pd.read_csv(folder / "soak.csv", keep_default_na=False, dtype={"resumed_s": str})


def soak_table(soak: pd.DataFrame) -> pd.DataFrame:
    """A row a soak."""
    rows = []
    for _, kills in soak.groupby(["seed", "minutes"]):
        ended = kills[kills["outcome"] == "ended"]
        rows.append(
            {
                "Until the last kill [min]": round(kills["at_s"].max() / 60),
                "Kills": (kills["outcome"] != "not struck").sum(),
                "Starts that failed": (kills["outcome"] == "not struck").sum(),
                "Ended, and started again": (ended["resumed_s"] != "never").sum(),
                "Went on": (kills["outcome"] == "continued").sum(),
                "Hung": (kills["outcome"] == "hung").sum(),
                "Longest until the end [s]": f"{ended['seconds'].max():.0f}",
                "Steps trained": kills["steps"].max(),
                "Prompts lost": kills["lost"].sum(),
                "Trained twice": kills["twice"].sum(),
                "Left behind": sum(int(count) for kind in LEFT for count in ended[kind]),
            }
        )
    return pd.DataFrame(rows)


def growth_table(folder: Path = FOLDER) -> pd.DataFrame:
    growth = pd.read_csv(folder / "soak_growth.csv")
    return growth.rename(
        columns={
            "part": "Part",
            "processes": "Processes",
            "seconds": "Watched [s]",
            "mb": "Memory [MB]",
            "mb_per_minute": "Growth [MB/min]",
            "descriptors": "Descriptors",
            "descriptors_per_minute": "Growth [1/min]",
        }
    )


def totals(runs: pd.DataFrame) -> str:
    right = sum(not faults_of(row) for _, row in runs.iterrows())
    ended = runs[runs["outcome"] == "ended"]
    hung, lost, twice = (
        (runs["outcome"] == "hung").sum(),
        runs["lost"].astype(int).sum(),
        runs["twice"].astype(int).sum(),
    )
    return (
        f"{len(runs)} cells: {(runs['outcome'] == 'continued').sum()} went on, {len(ended)} ended, {hung} hung; "
        f"{lost} prompts lost, {twice} trained twice; {right} cells are as they should be.\n"
    )
