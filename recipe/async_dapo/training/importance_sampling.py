"""Importance sampling over several policy versions: statistics of the ratios.

Ratios, truncation, rejection masks and pooled off-policy metrics are verl's (`rollout_corr_helper`). Float64 inside, in
log space as long as possible.
"""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from .metrics import PREFIX

MAX_LOG = 600.0  # exp() saturates at e^600 = 4e260, so that sums over any batch stay finite in float64
CHUNK = 2**20  # tokens whose statistics are taken at once: their copies in float64 stay small
SUMS = ("tokens", "ratio", "ratio2", "k3")


def ratio_sums(log_ratio_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """Of the finite token ratios r = p / q under the mask, what their statistics are made of. The sums of several parts
    of a batch add up, `highest` is the largest one.

    tokens   how many
    ratio    sum of r
    ratio2   sum of r^2
    k3       sum of r - 1 - log r
    highest  largest log r; -inf without tokens

    Args:
        log_ratio_BT: [B, T] log p - log q of each token, nats; never read outside the mask.
        mask_BT: [B, T] bool or 0/1.
    """
    totals, highest = [0.0] * len(SUMS), -math.inf
    for log_ratio_N in _finite(log_ratio_BT, mask_BT):
        r_N = log_ratio_N.clamp(-MAX_LOG / 2, MAX_LOG / 2).exp()  # its square, too, has to be finite
        k3_N = log_ratio_N.clamp(max=MAX_LOG).expm1() - log_ratio_N
        tokens = r_N.new_tensor(len(r_N))
        *part, largest = torch.stack([tokens, r_N.sum(), r_N.dot(r_N), k3_N.sum(), log_ratio_N.max()]).tolist()
        totals, highest = [*map(sum, zip(totals, part, strict=True))], max(highest, largest)
    return dict(zip(SUMS, totals, strict=True)) | {"highest": highest}


def ratio_statistics(sums: Mapping[str, float]) -> dict[str, float]:
    """Statistics of the ratios of which these are the sums; none without tokens.

    ratio_max  largest r
    k3_kl      mean of r - 1 - log r, estimates KL(q || p), nats per token
    ess_ratio  effective sample size over the tokens, 0-1
    """
    if not (tokens := sums["tokens"]):
        return {}
    return {
        "ratio_max": math.exp(min(sums["highest"], MAX_LOG)),
        "k3_kl": sums["k3"] / tokens,
        "ess_ratio": sums["ratio"] ** 2 / sums["ratio2"] / tokens,
    }


def _finite(values_BT: Tensor, mask_BT: Tensor) -> Iterator[Tensor]:
    """The finite values under a mask, [N] float64 and N > 0, as parts."""
    for values_N, mask_N in zip(values_BT.flatten().split(CHUNK), mask_BT.flatten().split(CHUNK), strict=True):
        values_N = values_N[mask_N.bool() & values_N.isfinite()].double()
        if len(values_N):
            yield values_N


def importance_sums(log_ratio_BT: Tensor, is_newest_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """What `importance_metrics` are made of; of a batch or of a part of it, as in `ratio_sums`.

    Args:
        log_ratio_BT: [B, T] log pi_prox - log mu of each token, nats; mu is what the correction takes for it.
        is_newest_BT: [B, T] bool, tokens that the newest policy version has sampled.
        mask_BT: [B, T] bool or 0/1, tokens in the loss.

    Raises:
        ValueError: on shapes that differ.
    """
    if len(shapes := {tuple(tensor.shape) for tensor in (log_ratio_BT, is_newest_BT, mask_BT)}) != 1:
        raise ValueError(f"log_ratio_BT, is_newest_BT, mask_BT: shapes must be equal, got {shapes}")
    masks = {"overall": mask_BT.bool(), "staleness_0": mask_BT.bool() & is_newest_BT}
    sums = {of: ratio_sums(log_ratio_BT, mask_of_BT) for of, mask_of_BT in masks.items()}
    in_loss = {"in_loss": float(mask_BT.sum())}
    return in_loss | {f"{of}/{name}": value for of, named in sums.items() for name, value in named.items()}


def importance_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Statistics of pi_prox / mu, overall and of the newest version's tokens, from `importance_sums`."""
    overall, newest = (
        ratio_statistics({name: sums[f"{of}/{name}"] for name in (*SUMS, "highest")})
        for of in ("overall", "staleness_0")
    )
    values = {"not_finite_tokens": sums["in_loss"] - sums["overall/tokens"]}
    values |= {f"overall/{name}": value for name, value in overall.items()}
    values |= {f"staleness_0/{name}": newest[name] for name in ("ratio_max", "k3_kl") if newest}
    return {f"{PREFIX}importance/{name}": float(value) for name, value in values.items()}
