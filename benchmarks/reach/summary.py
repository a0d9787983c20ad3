"""Verdicts of verl's scripts, counted."""

from pathlib import Path

import pandas as pd

RESULTS = Path(__file__).parents[2] / "assets" / "reach"
ACCEPTED, IGNORED, REFUSED = "accepted", "accepted without what verl ignores", "refused"
NEVER_RUN = ("megatron", "veomni")


def counts(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Scripts by tree and verdict; those accepted of which nobody has run the training engine are in columns apart."""
    is_new = verdicts["training"].isin(NEVER_RUN) & (verdicts["verdict"] != REFUSED)
    columns = verdicts["verdict"].where(~is_new, verdicts["verdict"] + "; engine never run")
    table = pd.crosstab(verdicts["tree"], columns)
    return table.assign(scripts=table.sum(axis="columns")).reset_index()


def reasons(verdicts: pd.DataFrame) -> pd.DataFrame:
    """How many scripts each option keeps out."""
    refused = verdicts[verdicts["verdict"] == REFUSED]
    keys = refused["reasons"].str.split("\n").explode().str.partition(": ")[0]
    return keys.value_counts().rename_axis("refused option").reset_index(name="scripts")


def scripts() -> pd.DataFrame:
    table = counts(pd.read_csv(RESULTS / "verdicts.csv")).rename(columns={"tree": "verl's tree"})
    return table.rename(columns=lambda name: name[0].upper() + name[1:])
