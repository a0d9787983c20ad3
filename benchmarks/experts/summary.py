"""What `runs.csv` comes to: experts over a dense model at equal staleness."""

from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parents[2] / "assets" / "experts"
CELL = ["rate", "staleness", "seed"]


def over_dense() -> pd.DataFrame:
    """Of experts, with their own choice and with that of the policy that sampled: k3 over a dense model's, by cell; the
    ESS ratios of both.
    """
    runs = pd.read_csv(FOLDER / "runs.csv").set_index(CELL)
    dense, experts = (runs[runs["model"] == model] for model in ("dense", "experts"))
    columns = {
        "chosen": experts["k3"] / dense["k3"],
        "replayed": experts["replayed_k3"] / dense["k3"],
        "dense_ess": dense["ess"],
        "experts_ess": experts["ess"],
    }
    return pd.DataFrame(columns).dropna().reset_index()


def in_words() -> str:
    cells = over_dense()
    oldest = cells[(cells["staleness"] == cells["staleness"].max()) & (cells["rate"] == cells["rate"].max())]
    chosen, replayed = cells["chosen"], cells["replayed"]
    least, most = chosen.quantile(0.25), chosen.quantile(0.75)
    ess = [f"{oldest[name].min():.2f} to {oldest[name].max():.2f}" for name in ("experts_ess", "dense_ess")]
    return (
        f"Measured on tiny models, {cells['seed'].nunique()} seeds, learning rates {cells['rate'].min():g} and "
        f"{cells['rate'].max():g}, staleness 1 to {cells['staleness'].max()} "
        f"([runs.csv](../assets/experts/runs.csv)): k3 of old tokens is {chosen.median():.1f} times a dense model's "
        f"(median; half of the cells lie within {least:.1f} and {most:.1f}), and {replayed.median():.1f} times with "
        f"the experts that sampled them. At the highest rate and staleness the ESS ratio is {ess[0]}, that of a dense "
        f"model {ess[1]}.\n"
    )
