"""The committed rows of the grid are possible ones."""

import pandas as pd

from benchmarks.defaults.draw import FOLDER, SEPARATE
from benchmarks.defaults.settings import SETTINGS
from recipe.async_dapo_lab.plan.candidates import bound_of

NOISE = 0.03  # of a window of few steps, and of the bound's sample of prompts


def test_no_rollout_of_the_grid_is_faster_than_the_bound() -> None:
    """But those of separate_async, which the trainer's own seconds hide."""
    rows = pd.read_csv(FOLDER / "systems.csv")
    rows = rows[rows["step_s"].notna() & ~rows["system"].str.startswith(SEPARATE)]
    bounds_s = {str(one): bound_of(one.scenario()).rollout_s for one in SETTINGS}
    share = rows["setting"].map(bounds_s) / (rows["rollout_s"] / rows["length_bias"])
    assert share.notna().all()
    assert share.max() <= 1 + NOISE, rows.loc[share > 1 + NOISE, ["setting", "system"]]
