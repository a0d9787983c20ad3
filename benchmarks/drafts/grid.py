"""The grid with drafts and an FP8 cache: rows of `grid.csv`, and their means over settings. All of it is simulated.

Accepted tokens are an assumption: 0.3, 0.6 and 0.9 of a request and step, 0.4 of what is drafted. Beside this recipe's
defaults are those with a cap under which their off-policy share is not above that of verl's colocate_async, and
colocate_async with the same drafts, which verl does not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.defaults import draw as defaults
from benchmarks.defaults.draw import geometric_mean, read_systems
from benchmarks.defaults.run import COLOCATE, DEFAULT, EQUAL_SHARE, measure, ours
from benchmarks.defaults.settings import Setting
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo_lab.plan.candidates import COLOCATE_WITH_DRAFTS, Candidate, baselines, with_drafts

FOLDER = Path(__file__).parents[2] / "assets" / "drafts"
CAP_STEP = 0.05
SYSTEMS = (DEFAULT, EQUAL_SHARE, COLOCATE_WITH_DRAFTS)
TARGETS = {  # of colocate_async's step, at 0.6 accepted tokens
    (DEFAULT, "auto"): 0.82,
    (DEFAULT, "fp8"): 0.72,
    (EQUAL_SHARE, "auto"): 0.88,
    (EQUAL_SHARE, "fp8"): 0.78,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is assumed of the engines of a system."""

    system: str
    accepted: float
    kv_cache: str

    def inputs(self) -> dict[str, Any]:
        return {"drafts_accepted": self.accepted, "kv_cache_dtype": self.kv_cache}


def cells() -> list[Cell]:
    """Those that have a target first."""
    return [
        Cell(system=system, accepted=accepted, kv_cache=dtype)
        for accepted in (0.6, 0.3, 0.9)
        for system in (SYSTEMS if accepted == 0.6 else (DEFAULT,))
        for dtype in ("auto", "fp8")
    ]


def run(folder: Path, settings: Sequence[Setting]) -> None:
    """Simulate what the file does not have yet."""
    file, plain = RunsFile(folder / "grid.csv"), read_systems().set_index(["setting", "system"])
    for cell in cells():
        for setting in settings:
            share = float(plain.loc[(str(setting), COLOCATE), "off_policy"])
            key: dict[str, Any] = {"setting": str(setting), "system": cell.system}
            key |= {"accepted": cell.accepted, "kv_cache": cell.kv_cache}
            file.measure(key, partial(_measure, setting, cell, share))


def _measure(setting: Setting, cell: Cell, share: float) -> dict[str, Any]:
    if cell.system == EQUAL_SHARE:
        row = _at_share(setting, cell, share)
    else:
        row = measure(setting, "", _candidate(setting, cell), **cell.inputs())
    kept = ("step_s", "rollout_s", "trained_tok", "withheld_tok", "off_policy", "staleness_mean", "length_bias", "cap")
    return {name: row.get(name, "") for name in kept}


def _candidate(setting: Setting, cell: Cell, **options: Any) -> Candidate:
    if cell.system == COLOCATE_WITH_DRAFTS:
        rows = baselines(setting.scenario(**cell.inputs()))
        return next(one for one in rows if one.system.name == COLOCATE_WITH_DRAFTS)
    plain = ours(cell.system, **options)
    return replace(plain, system=with_drafts(plain.system))


def _at_share(setting: Setting, cell: Cell, share: float) -> dict[str, Any]:
    """The defaults, with a cap where their share would be above this one: the loosest, in steps, that keeps it."""
    cap: float | None = None
    while True:
        row = measure(setting, "", _candidate(setting, cell, max_partial_share=cap), **cell.inputs())
        if row["off_policy"] <= share:
            return row | {"cap": "" if cap is None else cap}
        # The share that a cap leads to lies below it, by up to 0.15.
        cap = round((CAP_STEP * round(share / CAP_STEP) + 0.15 if cap is None else cap - CAP_STEP), 2)


def _compared(folder: Path) -> pd.DataFrame:
    """Every row, with its seconds per batch of natural length in the loss over those of colocate_async without drafts,
    and over those of the same system without drafts."""
    rows, plain = pd.read_csv(folder / "grid.csv"), read_systems().set_index(["setting", "system"])["per_batch_s"]
    in_loss = 1 - rows["withheld_tok"].fillna(0) / rows["trained_tok"]
    rows = rows.assign(per_batch_s=rows["step_s"] / rows["length_bias"] / in_loss)
    own = rows["system"].replace({COLOCATE_WITH_DRAFTS: COLOCATE})
    rows["over_colocate"] = rows["per_batch_s"] / [plain[setting, COLOCATE] for setting in rows["setting"]]
    rows["over_own"] = rows["per_batch_s"] / [plain[key] for key in zip(rows["setting"], own, strict=True)]
    return rows


def headline_table() -> pd.DataFrame:
    """README's three clusters, with this recipe's defaults with drafts as a last column."""
    clusters, rows = defaults.headline_table(), _compared(FOLDER)
    is_shown = (rows["system"] == DEFAULT) & (rows["accepted"] == 0.6) & (rows["kv_cache"] == "auto")
    over_colocate = rows[is_shown].set_index("setting")["over_colocate"]
    return clusters.assign(
        **{"With drafts (0.6 accepted) over colocate_async without": clusters.iloc[:, 0].map(over_colocate)}
    )


def summary(folder: Path = FOLDER) -> pd.DataFrame:
    """Geometric means over the settings that have been simulated."""
    rows, lines = _compared(folder), []
    for (system, dtype, accepted), some in rows.groupby(["system", "kv_cache", "accepted"], sort=False):
        lines.append(
            {
                "Simulated: system": system,
                "KV cache": dtype,
                "Accepted tokens a step": accepted,
                "Settings": len(some),
                "Over colocate_async": geometric_mean(some["over_colocate"]),
                "Best": some["over_colocate"].min(),
                "Worst": some["over_colocate"].max(),
                "Target": TARGETS.get((system, dtype), float("nan")) if accepted == 0.6 else float("nan"),
                "Over itself without drafts": geometric_mean(some["over_own"]),
                "Off-policy": some["off_policy"].mean(),
            }
        )
    frame = pd.DataFrame(lines).sort_values(["Simulated: system", "KV cache", "Accepted tokens a step"])
    return frame.reset_index(drop=True)
