"""What `runs.csv` of the published results by rehearsal comes to."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.plan.published_claims import Claim, claims

ASSETS = Path(__file__).parents[2] / "assets"
FOLDER = ASSETS / "published"
TARGET = 0.15  # largest relative error that is no miss
COLUMNS = ["Source", "What", "Published", "Simulated", "Rehearsed", "Error", "Target", "Valid"]
_COPRIS, _APRIL = 4.0, 10.0
SPEEDUPS = {  # that two cores can follow, of the published numbers that are rehearsed
    "R1-1.5B, 16 A800: step, sync / CoPRIS": _COPRIS,
    "Qwen3-8B, 8K: step, sync / CoPRIS": _COPRIS,
    "Qwen3-4B, DAPO-Math-17k: rollout throughput": _APRIL,
    "Qwen3-4B, DeepScaleR: rollout throughput": _APRIL,
    "Qwen3-4B, DeepMath-103K: rollout throughput": _APRIL,
    "R1-7B, 32 H800: step, sync / CoPRIS": _COPRIS,
    "Qwen3-8B, 32 H800: step, sync / CoPRIS": _COPRIS,
    "Qwen3-8B, 40K: step, sync / CoPRIS": _COPRIS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What a claim is read off, in place of a simulated step."""

    step_s: float
    rollout_tokens_per_s_per_gpu: float

    @classmethod
    def of(cls, run: pd.Series) -> "Rehearsed":
        return cls(
            step_s=run["step_s"] + run["scored_s"],
            rollout_tokens_per_s_per_gpu=run["tok_per_s_per_gpu"] * run["step_s"] / run["rollout_s"],
        )


def chosen() -> list[Claim]:
    """The published numbers that are rehearsed."""
    return [claim for claim in claims() if claim.what in SPEEDUPS]


def read_runs(folder: Path = FOLDER) -> pd.DataFrame:
    """Every rehearsal; none before the first has been kept."""
    file = folder / "runs.csv"
    return pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["case"])


def published_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Claims of which all systems have been rehearsed; medians over repetitions."""
    simulated = pd.read_csv(ASSETS / "plan" / "validation.csv").set_index("what")["simulated"]
    medians = runs.groupby("case").median(numeric_only=True)
    lines = []
    for claim in chosen():
        if not set(claim.cases) <= set(medians.index):
            continue
        rehearsed = claim.value(*(Rehearsed.of(medians.loc[name]) for name in claim.cases))
        error = rehearsed / claim.published - 1
        valid = runs[runs["case"].isin(claim.cases)]["is_valid"].all()
        lines.append(
            {
                "Source": claim.source,
                "What": claim.what,
                "Published": claim.published,
                "Simulated": simulated[claim.what],
                "Rehearsed": rehearsed,
                "Error": f"{error:+.0%}",
                "Target": "met" if abs(error) <= TARGET else "missed",
                "Valid": "yes" if valid else "no",
            }
        )
    return pd.DataFrame(
        lines, columns=["Source", "What", "Published", "Simulated", "Rehearsed", "Error", "Target", "Valid"]
    )
