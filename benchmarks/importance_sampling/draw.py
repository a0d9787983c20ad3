"""Bias and variance of partial (PR) and consistent (CR) rollout data as the policy versions drift apart.

    python -m benchmarks.importance_sampling.draw

writes variance.csv and variance.png (some seconds; needs matplotlib). Every bias and variance is
exact, by enumeration of a tiny softmax sequence model; the only averages are over `WORLDS` random models per drift. The
estimate is the policy gradient of a 0/1 reward under the newest weights, from 6 trajectories that were begun by the
three versions before them, 2 by each. Trajectories have 1 to 4 tokens: compare with a real run by KL per trajectory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean, quantiles

import pandas as pd
import torch

from benchmarks.importance_sampling.softmax_sequence_model import (
    World,
    balance_weights,
    exact_moments,
    make_world,
    scheduled_log_probs,
    trajectory_probs,
    uniform_weights,
)

FOLDER = Path(__file__).parents[2] / "assets" / "importance_sampling"
DRIFTS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
WORLDS = 100
COUNTS_C = torch.tensor([2.0, 2.0, 2.0], dtype=torch.float64)
SCHEDULES = {
    "PR, new version every token": torch.tensor([[0, 1, 2, 2], [1, 2, 2, 2], [2, 2, 2, 2]]),
    "PR, new version every 2 tokens": torch.tensor([[0, 0, 1, 1], [1, 1, 2, 2], [2, 2, 2, 2]]),
    "CR": torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2]]),
}
COLOURS = dict(zip(SCHEDULES, ("#d9691e", "#f4b183", "#9dc3e6"), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    drift: float  # standard deviation of the change of a logit per version, nats
    kl_per_trajectory: float  # between neighbouring versions, nats, mean over worlds
    rollout: str
    weights: str
    relative_bias: float  # |mean - truth| / |truth|, mean over worlds
    variance_ratio: float  # over that of 6 on-policy trajectories, geometric mean over worlds
    variance_ratio_p10: float
    variance_ratio_p90: float
    beats_cr_balance: float  # share of worlds with less variance than CR with the balance heuristic


def kl_per_trajectory(world: World) -> float:
    """Mean KL(newer || older) of neighbouring versions, nats."""
    versions_JXT = torch.cat([world.log_pi_JXT, world.log_p_XT[None]])
    p_JX = trajectory_probs(world.model, versions_JXT)
    return float((p_JX[1:] * (p_JX[1:] / p_JX[:-1]).log()).sum(-1).mean())


def bias_and_variance(world: World) -> Iterator[tuple[tuple[str, str], float, float]]:
    """Yields (rollout, weights), relative bias, variance relative to on-policy data."""
    f_XD = world.gradient_XD
    truth_D = world.target_mean(f_XD)
    on_policy = exact_moments(world.p_X[None], torch.ones_like(world.p_X)[None], f_XD, COUNTS_C.sum()[None])
    for rollout, schedule_CT in SCHEDULES.items():
        log_q_CXT = scheduled_log_probs(world.log_pi_JXT, schedule_CT)
        q_CX = trajectory_probs(world.model, log_q_CXT)
        for weights, weights_CX in {
            "none": torch.ones_like(q_CX),
            "uniform": uniform_weights(world, log_q_CXT),
            "balance": balance_weights(world, log_q_CXT, COUNTS_C),
        }.items():
            moments = exact_moments(q_CX, weights_CX, f_XD, COUNTS_C)
            bias = float((moments.mean_D - truth_D).norm() / truth_D.norm())
            yield (rollout, weights), bias, moments.variance / on_policy.variance


def sweep(drift: float, *, worlds: int = WORLDS) -> list[Row]:
    """One row per rollout and weights."""
    results: dict[tuple[str, str], list[tuple[float, float]]] = {}
    kls: list[float] = []
    seed = 0
    while len(kls) < worlds:
        world = make_world(seed=seed, drift=drift)
        seed += 1
        if not 0.05 < float(world.p_X @ world.reward_X) < 0.95:
            continue  # almost no gradient: relative bias would be a ratio of two near-zeros
        kls.append(kl_per_trajectory(world))
        for key, bias, variance_ratio in bias_and_variance(world):
            results.setdefault(key, []).append((bias, variance_ratio))
    reference = [variance for _, variance in results["CR", "balance"]]
    rows = []
    for (rollout, weights), values in results.items():
        biases, variances = zip(*values, strict=True)
        deciles = quantiles(variances, n=10)
        rows.append(
            Row(
                drift=drift,
                kl_per_trajectory=fmean(kls),
                rollout=rollout,
                weights=weights,
                relative_bias=fmean(biases),
                variance_ratio=geometric_mean(variances),
                variance_ratio_p10=deciles[0],
                variance_ratio_p90=deciles[-1],
                beats_cr_balance=fmean(v < r * (1 - 1e-9) for v, r in zip(variances, reference, strict=True)),
            )
        )
    return rows


def draw(rows: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    unweighted = [(rollout, "none", f"{rollout}, unweighted", colour) for rollout, colour in COLOURS.items()]
    weighted = [
        ("PR, new version every 2 tokens", "uniform", "PR, new version every 2 tokens, uniform", "#f4b183"),
        ("PR, new version every token", "uniform", "PR, new version every token, uniform", "#d9691e"),
        ("CR", "uniform", "CR, uniform", "#9dc3e6"),
        ("CR", "balance", "CR, balance heuristic", "#1f5fa8"),
        ("PR, new version every token", "balance", "PR, new version every token, balance (switches known)", "#7a7a7a"),
    ]
    by_key = {(row.rollout, row.weights, row.drift): row for row in rows}
    ticks = [f"{drift:g}\n{by_key['CR', 'none', drift].kl_per_trajectory:.2g}" for drift in DRIFTS]
    figure, (bias_axes, variance_axes) = plt.subplots(1, 2, figsize=(12, 4.4), width_ratios=(1, 1.5))

    panels = ((bias_axes, unweighted, "relative_bias"), (variance_axes, weighted, "variance_ratio"))
    for axes, series, quantity in panels:
        width = 0.8 / len(series)
        for position, (rollout, weights, label, colour) in enumerate(series):
            heights = [getattr(by_key[rollout, weights, drift], quantity) for drift in DRIFTS]
            x = [index + (position - (len(series) - 1) / 2) * width for index in range(len(DRIFTS))]
            axes.bar(x, heights, width=width, color=colour, label=label)
    worst = max(row.relative_bias for row in rows if row.weights != "none")
    bias_axes.set_title(f"Bias without weights (with any of the weights: < {10 * worst:.0e})", fontsize=10)
    bias_axes.set_ylabel("bias / norm of the policy gradient")
    variance_axes.axhline(1.0, color="black", linewidth=0.8)
    variance_axes.set_title("Variance with weights", fontsize=10)
    variance_axes.set_ylabel("variance / variance on-policy")
    for axes in (bias_axes, variance_axes):
        axes.set_xticks(range(len(DRIFTS)), ticks)
        axes.set_xlabel("change per version: std of a logit; below it KL per trajectory [nats]")
        axes.legend(fontsize=8, loc="upper left")
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"6 trajectories begun by 3 versions, exact by enumeration; mean over {WORLDS} random models")
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Software": None})


def main() -> None:
    rows = [row for drift in DRIFTS for row in sweep(drift)]
    pd.DataFrame(rows).to_csv(FOLDER / "variance.csv", index=False, float_format="%.4g")
    draw(rows, FOLDER / "variance.png")


if __name__ == "__main__":
    main()
