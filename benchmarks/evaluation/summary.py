"""What `costs.csv` comes to, for the page on sources."""

from pathlib import Path

import pandas as pd

FILE = Path(__file__).parents[2] / "assets" / "evaluation" / "costs.csv"
SHOWN = 10  # trainer.test_freq


def table() -> pd.DataFrame:
    """A row a cluster, in percent of a run."""
    rows = pd.read_csv(FILE)
    rows = rows[rows["test_freq"] == SHOWN]
    columns = {
        "share": "A validation that stops the training [%]",
        "saved_at_most": "Saved if all surplus is used [%]",
        "saved_at_least": "if none is [%]",
    }
    shares = (100 * rows[list(columns)]).map("{:.1f}".format).rename(columns=columns)
    return shares.assign(Cluster=rows["setting"])[["Cluster", *columns.values()]]
