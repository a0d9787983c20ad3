"""Tables of `runs.csv`: seconds per batch of natural length in the loss, over those of other systems.

The study is closed (benchmarks/README.md): this recipe with engines on GPUs of their own, simulated. None of its rows
counts what training ranks wait for each other at updates.
"""

from pathlib import Path

import pandas as pd

from benchmarks.defaults.draw import geometric_mean
from benchmarks.defaults.run import COLOCATE

FOLDER = Path(__file__).parents[2] / "assets" / "separate"
VERL, OURS = "verl separate_async", "separate"
CONSISTENT = "separate, consistent"
AT_VERLS, AT_COLOCATE = "separate, at separate_async's share", "separate, at colocate_async's share"
COLOCATED = "colocated, equal share"
PAIRS = (  # a system, and what it is compared with
    (OURS, VERL),
    (CONSISTENT, VERL),
    (AT_VERLS, VERL),
    (AT_COLOCATE, COLOCATE),
    (AT_COLOCATE, COLOCATED),
)


def read() -> pd.DataFrame:
    """The fastest split of each system: seconds and off-policy shares."""
    rows = pd.read_csv(FOLDER / "runs.csv")
    rows = rows[rows["step_s"].notna()]
    rows = rows.assign(per_batch_s=rows["step_s"] / rows["length_bias"])
    best = rows.loc[rows.groupby(["setting", "system"])["per_batch_s"].idxmin()]
    return best.set_index(["system", "setting"])[["per_batch_s", "off_policy"]]


def summary() -> pd.DataFrame:
    """A row a comparison: the geometric mean over settings that have both."""
    rows, lines = read(), []
    for system, other in PAIRS:
        ratio = (rows["per_batch_s"].loc[system] / rows["per_batch_s"].loc[other]).dropna()
        shares = [rows["off_policy"].loc[one][ratio.index].mean() for one in (system, other)]
        lines.append(
            {
                "Simulated: separate": system.removeprefix(f"{OURS}, "),
                "Over": other,
                "Step": geometric_mean(ratio),
                "Off-policy": shares[0],
                "The other's": shares[1],
            }
        )
    return pd.DataFrame(lines)
