"""How the correction of a batch becomes metrics; `metric_names.py` says what they mean."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..core.version_mixture import MixturePlan
from .importance_sampling import version_statistics
from .metric_names import PREFIX, STALENESS_BUCKETS


def importance_metrics(log_ratio_BT: Tensor, version_BT: Tensor, mask_BT: Tensor, *, step: int) -> dict[str, float]:
    """Statistics of pi_prox / mu, overall and by staleness.

    Args:
        log_ratio_BT: [B, T] log pi_prox - log mu of each token, nats; mu is what the correction takes for it.
        version_BT: [B, T] policy version that sampled each token.
        mask_BT: [B, T] tokens in the loss.
    """
    bucket_BT = (step - 1 - version_BT).clamp(0, len(STALENESS_BUCKETS) - 1)
    by_bucket = version_statistics(log_ratio_BT, bucket_BT, mask_BT)
    counted_tok = by_bucket["overall"]["tokens"] if by_bucket else 0
    values: dict[str, float] = {"importance/not_finite_tokens": int(mask_BT.sum()) - counted_tok}
    for bucket, statistics in by_bucket.items():
        scope = "overall" if bucket == "overall" else f"staleness_{STALENESS_BUCKETS[bucket]}"
        values[f"importance/{scope}/ess_ratio"] = statistics["ess_tok"] / statistics["tokens"]
        for name in ("renyi2", "ratio_mean", "ratio_max", "k3_kl"):
            values[f"importance/{scope}/{name}"] = statistics[name]
    return {PREFIX + name: float(value) for name, value in values.items()}


def mixture_metrics(
    plan: MixturePlan,
    *,
    older: Mapping[int, Sequence[int]],
    batch_tok: int,
    keeps_versions: bool,
    **measured: float,
) -> dict[str, float]:
    """What the balance heuristic did in a step.

    Args:
        older: versions that scored trajectories, and which.
        batch_tok: sampled tokens of the batch.
        keeps_versions: whether every trajectory ends under the version that began it.
        measured: seconds and bytes.
    """
    values = {
        "versions": len(older),
        "scored_trajectories": sum(map(len, older.values())),
        "token_share": plan.mixed_tok / max(1, batch_tok),
        "unknown_share": plan.unknown_tok / max(1, batch_tok),
        "extended_share": 0.0 if keeps_versions else plan.extended_share,
        **measured,
    }
    return {f"{PREFIX}mixture/{name}": float(value) for name, value in values.items()}
