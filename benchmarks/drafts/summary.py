"""What `grid.csv` of a closed study (benchmarks/README.md) comes to: the grid with drafts and an FP8 cache, simulated.

Accepted tokens are an assumption: 0.3, 0.6 and 0.9 of a request and step, 0.4 of what is drafted. Beside this recipe's
defaults are those with a cap under which their off-policy share is not above that of verl's colocate_async, and
colocate_async with the same drafts, which verl does not have.
"""

from pathlib import Path

import pandas as pd

from benchmarks.defaults import draw as defaults
from benchmarks.defaults.draw import geometric_mean, read_systems
from benchmarks.defaults.run import COLOCATE, DEFAULT, EQUAL_SHARE
from recipe.async_dapo_lab.plan.candidates import COLOCATE_WITH_DRAFTS

FOLDER = Path(__file__).parents[2] / "assets" / "drafts"
TARGETS = {  # of colocate_async's step, at 0.6 accepted tokens
    (DEFAULT, "auto"): 0.82,
    (DEFAULT, "fp8"): 0.72,
    (EQUAL_SHARE, "auto"): 0.88,
    (EQUAL_SHARE, "fp8"): 0.78,
}


def _compared() -> pd.DataFrame:
    """Every row, with its seconds per batch of natural length in the loss over those of colocate_async without drafts,
    and over those of the same system without drafts."""
    rows, plain = pd.read_csv(FOLDER / "grid.csv"), read_systems().set_index(["setting", "system"])["per_batch_s"]
    in_loss = 1 - rows["withheld_tok"].fillna(0) / rows["trained_tok"]
    rows = rows.assign(per_batch_s=rows["step_s"] / rows["length_bias"] / in_loss)
    own = rows["system"].replace({COLOCATE_WITH_DRAFTS: COLOCATE})
    rows["over_colocate"] = rows["per_batch_s"] / [plain[setting, COLOCATE] for setting in rows["setting"]]
    rows["over_own"] = rows["per_batch_s"] / [plain[key] for key in zip(rows["setting"], own, strict=True)]
    return rows


def headline_table() -> pd.DataFrame:
    """README's three clusters, with this recipe's defaults with drafts as a last column."""
    clusters, rows = defaults.headline_table(), _compared()
    is_shown = (rows["system"] == DEFAULT) & (rows["accepted"] == 0.6) & (rows["kv_cache"] == "auto")
    over_colocate = rows[is_shown].set_index("setting")["over_colocate"]
    return clusters.assign(
        **{"With drafts (0.6 accepted) over colocate_async without": clusters.iloc[:, 0].map(over_colocate)}
    )


def summary() -> pd.DataFrame:
    """Geometric means over the settings that have been simulated."""
    rows, lines = _compared(), []
    for (system, dtype, accepted), some in rows.groupby(["system", "kv_cache", "accepted"], sort=False):
        lines.append(
            {
                "Simulated: system": system,
                "KV cache": dtype,
                "Accepted tokens a step": accepted,
                "Over colocate_async": geometric_mean(some["over_colocate"]),
                "Worst": some["over_colocate"].max(),
                "Target": TARGETS.get((system, dtype), float("nan")) if accepted == 0.6 else float("nan"),
                "Over itself without drafts": geometric_mean(some["over_own"]),
                "Off-policy": some["off_policy"].mean(),
            }
        )
    frame = pd.DataFrame(lines).sort_values(["Simulated: system", "KV cache", "Accepted tokens a step"])
    return frame.reset_index(drop=True)
