"""What `exact.csv` of a closed study (benchmarks/README.md) comes to: each correction's exact gradients."""

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parents[2] / "assets" / "corrections"


def exact_table() -> pd.DataFrame:
    """Error under `partial`: a row a correction, a column a drift between versions."""
    rows = pd.read_csv(FOLDER / "exact.csv")
    wide = rows[rows["rollout"] == "partial"].pivot(
        index="correction", columns="kl_per_trajectory", values="error_ratio"
    )
    wide.columns = [f"KL {kl:.3g}" for kl in wide.columns]
    return wide.loc[rows["correction"].unique()].rename_axis("Correction").reset_index()
