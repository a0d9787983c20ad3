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


def totals(runs: pd.DataFrame) -> str:
    right = sum(not faults_of(row) for _, row in runs.iterrows())
    went_on, ended, hung = ((runs["outcome"] == outcome).sum() for outcome in ("continued", "ended", "hung"))
    lost, twice = (runs[kind].astype(int).sum() for kind in ("lost", "twice"))
    return (
        f"{len(runs)} cells: {went_on} went on, {ended} ended, {hung} hung; "
        f"{lost} prompts lost, {twice} trained twice; {right} cells are as they should be.\n"
    )
