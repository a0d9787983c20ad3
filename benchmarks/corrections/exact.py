"""Bias and variance of DAPO's gradient under each correction and rollout strategy, as the policy versions drift apart.

Every moment is exact (`dapo_gradient.py`); the only averages are over `WORLDS` random models for each drift.
Trajectories have 1 to 3 tokens: compare with a real run by KL per trajectory.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean

import pandas as pd
import torch

from benchmarks.corrections.dapo_gradient import STALE_SHARE, Rollout, corrected, on_policy
from benchmarks.corrections.softmax_sequence_model import World, make_world, trajectory_probs

FOLDER = Path(__file__).parents[2] / "assets" / "corrections"
DRIFTS = (0.1, 0.2, 0.4, 0.8)
WORLDS = 20
LONGEST = 3  # tokens
GROUPS = 64  # of a batch whose mean squared error is given
_PARTIAL = torch.tensor([[0, 1, 2], [1, 2, 2], [2, 2, 2]])
ROLLOUTS = {
    "partial": Rollout(schedule_CT=_PARTIAL),
    "partial_stale_kv": Rollout(schedule_CT=_PARTIAL, stale_share=STALE_SHARE),
    "consistent": Rollout(schedule_CT=torch.arange(3)[:, None].expand(3, LONGEST)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    drift: float  # standard deviation of the change of a logit per version, nats
    kl_per_trajectory: float  # between neighbouring versions, nats, mean over worlds
    rollout: str
    correction: str
    relative_bias: float  # |mean - on-policy mean| / |on-policy mean|, mean over worlds
    variance_ratio: float  # over that of an on-policy group, geometric mean over worlds
    error_ratio: float  # mean squared error of a batch of GROUPS groups over that of an on-policy one, geometric mean


def kl_per_trajectory(world: World) -> float:
    """Mean KL(newer || older) of neighbouring versions, nats."""
    versions_JXT = torch.cat([world.log_pi_JXT, world.log_p_XT[None]])
    p_JX = trajectory_probs(world.model, versions_JXT)
    return float((p_JX[1:] * (p_JX[1:] / p_JX[:-1]).log()).sum(-1).mean())


def sweep(drift: float, *, worlds: int = WORLDS) -> list[Row]:
    """One row per rollout strategy and correction."""
    results: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    kls: list[float] = []
    seed = 0
    while len(kls) < worlds:
        world = make_world(seed=seed, drift=drift, max_length=LONGEST)
        seed += 1
        if not 0.05 < float(world.p_X @ world.reward_X) < 0.95:
            continue  # almost no gradient: relative bias would be a ratio of two near-zeros
        kls.append(kl_per_trajectory(world))
        truth = on_policy(world)
        for name, rollout in ROLLOUTS.items():
            for correction, moments in corrected(world, rollout).items():
                squared_bias = float((moments.mean_D - truth.mean_D).square().sum())
                error = (squared_bias + moments.variance / GROUPS) / (truth.variance / GROUPS)
                relative_bias = squared_bias**0.5 / float(truth.mean_D.norm())
                row = (relative_bias, moments.variance / truth.variance, error)
                results.setdefault((name, correction), []).append(row)
    return [
        Row(
            drift=drift,
            kl_per_trajectory=fmean(kls),
            rollout=rollout,
            correction=correction,
            relative_bias=fmean(row[0] for row in rows),
            variance_ratio=geometric_mean(row[1] for row in rows),
            error_ratio=geometric_mean(row[2] for row in rows),
        )
        for (rollout, correction), rows in results.items()
    ]


def write() -> None:
    """The CSV file and the figure."""
    torch.set_num_threads(1)  # of small tensors: threads would only wait for each other
    rows = pd.DataFrame([row for drift in DRIFTS for row in sweep(drift)])
    rows.to_csv(FOLDER / "exact.csv", index=False, float_format="%.4g")
    draw(rows)


def draw(rows: pd.DataFrame) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = {"none": "#9a9a9a", "bypass": "#d9691e", "decoupled": "#9dc3e6", "mixture": "#1f5fa8"}
    shown |= {"decoupled by sequence": "#b7d7a8", "mixture by sequence": "#38761d"}
    panels = {"relative_bias": "bias / norm of the gradient", "error_ratio": f"error of {GROUPS} groups / on-policy"}
    figure, axes = plt.subplots(2, len(ROLLOUTS), figsize=(12, 6), sharex=True, sharey="row", layout="constrained")
    for line, (quantity, label) in zip(axes, panels.items(), strict=True):
        for axis, name in zip(line, ROLLOUTS, strict=True):
            of_rollout = rows[rows["rollout"] == name]
            for position, (correction, colour) in enumerate(shown.items()):
                heights = of_rollout[of_rollout["correction"] == correction][quantity]
                x = [index + (position - (len(shown) - 1) / 2) * 0.13 for index in range(len(DRIFTS))]
                axis.bar(x, heights, width=0.13, color=colour, label=correction)
            axis.set_title(name if quantity == "relative_bias" else "")
            axis.set_xticks(range(len(DRIFTS)), [f"{kl:.2g}" for kl in of_rollout["kl_per_trajectory"].unique()])
            axis.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel(label)
    axes[1][0].set_yscale("log")
    axes[0][0].legend(fontsize=8, loc="upper left")
    figure.supxlabel("KL per trajectory and version [nats]", fontsize=10)
    figure.savefig(FOLDER / "exact.png", dpi=120, metadata={"Software": None})
