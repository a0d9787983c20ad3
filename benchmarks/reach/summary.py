"""Verdicts on verl's scripts, counted."""

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parents[2] / "assets" / "reach"
OPTIONS, VERDICTS = FOLDER / "options.csv", FOLDER / "verdicts.csv"
ACCEPTED, IGNORED, REFUSED = "accepted", "accepted without what verl ignores", "refused"
OUTCOMES = {
    ACCEPTED: "accepted as it is",
    IGNORED: "accepted once the options are deleted that nothing reads, each of which `check` names",
    REFUSED: "refused",
}


def counts() -> pd.DataFrame:
    """Scripts by outcome and tree."""
    verdicts = pd.read_csv(VERDICTS)
    table = pd.crosstab(verdicts["verdict"], verdicts["tree"]).reindex(list(OUTCOMES), fill_value=0)
    table.loc["all"] = table.sum()
    table.columns = pd.Index([f"verl of {tree}" for tree in table.columns])
    return table.rename(index=OUTCOMES).rename_axis("Outcome").reset_index()
