"""Tables of `runs.csv`: seconds per batch of natural length in the loss, over those of other systems.

The study is closed (benchmarks/README.md): this recipe with engines on GPUs of their own, simulated.
"""

from pathlib import Path

import pandas as pd

from benchmarks.defaults.draw import geometric_mean, read_systems
from benchmarks.defaults.run import COLOCATE, DEFAULT, EQUAL_SHARE

FOLDER = Path(__file__).parents[2] / "assets" / "separate"
VERL, OURS = "verl separate_async", "separate"
FULL, CONSISTENT = "separate, full", "separate, consistent"
SPOT = "separate, a new engine each step"
AT_VERLS, AT_COLOCATE = "separate, at separate_async's share", "separate, at colocate_async's share"
TRAINING = "separate, training alone"  # of verl's
COLOCATED = "colocated"
OTHERS = {COLOCATE: COLOCATE, DEFAULT: COLOCATED, EQUAL_SHARE: f"{COLOCATED}, equal share"}
PAIRS = (  # a system, and what it is compared with
    (OURS, VERL),
    (FULL, VERL),
    (CONSISTENT, VERL),
    (AT_VERLS, VERL),
    (TRAINING, VERL),
    (AT_COLOCATE, COLOCATE),
    (FULL, COLOCATED),
    (AT_COLOCATE, OTHERS[EQUAL_SHARE]),
    (SPOT, OURS),
)


def read(folder: Path = FOLDER) -> pd.DataFrame:
    """The fastest split of each system, and the systems of the grid: seconds and off-policy shares."""
    rows = pd.read_csv(folder / "runs.csv")
    rows = rows[rows["step_s"].notna()]
    rows = rows.assign(per_batch_s=rows["step_s"] / rows["length_bias"])
    best = rows.loc[rows.groupby(["setting", "system"])["per_batch_s"].idxmin()]
    training = best[best["system"] == VERL].assign(system=TRAINING, off_policy=float("nan"))
    training["per_batch_s"] = (training["log_prob_s"] + training["train_s"]) / training["length_bias"]
    grid = read_systems()
    grid = grid[grid["setting"].isin(rows["setting"]) & grid["system"].isin(OTHERS)]
    both = pd.concat([best, training, grid.assign(system=grid["system"].map(OTHERS))])
    return both.set_index(["system", "setting"])[["per_batch_s", "off_policy"]]


def read_rehearsed(folder: Path = FOLDER) -> pd.DataFrame:
    """A row a strategy, and whether its rehearsal may be believed."""
    return pd.read_csv(folder / "rehearsed.csv")


def summary(folder: Path = FOLDER) -> pd.DataFrame:
    """A row a comparison: the geometric mean over settings that have both, and the extremes."""
    rows, lines = read(folder), []
    for system, other in PAIRS:
        ratio = (rows["per_batch_s"].loc[system] / rows["per_batch_s"].loc[other]).dropna()
        shares = [rows["off_policy"].loc[one][ratio.index].mean() for one in (system, other)]
        lines.append(
            {
                "Simulated: separate": system.removeprefix(f"{OURS}, "),
                "Over": other,
                "Step": geometric_mean(ratio),
                "Best": ratio.min(),
                "Worst": ratio.max(),
                "Off-policy": shares[0],
                "The other's": shares[1],
            }
        )
    return pd.DataFrame(lines)
