"""Corrections that leave tokens out of `decoupled`'s loss where the policy has drifted from what sampled them.

With the ratio r = pi_prox / mu, its truncation w and the advantage A, a token's loss is M w L(pi_theta / pi_prox); here
is M. It is decided once a step, before any update: with several updates a step PPO's own clip acts beside it.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..option_values import ImportanceSampling

CLIP_LOW, CLIP_HIGH = 0.8, 1.28
MOST_DRIFT = 0.01  # nats per token
MOST_SECOND_MOMENT = 0.04  # nats^2, as in the paper

# Log ratio [nats], advantage, whether a token is in the loss -> whether it stays there; all [B, T].
Keeps = Callable[[Tensor, Tensor, Tensor], Tensor]


def keeps_near_sequences(log_ratio_BT: Tensor, advantage_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Off-policy sequence masking (DeepSeek-V3.2, arXiv:2512.02556): a trajectory with a negative advantage goes if
    the mean of log mu - log pi_prox over its tokens exceeds `MOST_DRIFT`."""
    tokens_B1 = mask_BT.sum(-1, keepdim=True).clamp(min=1)
    drift_B1 = -torch.where(mask_BT, log_ratio_BT, 0.0).sum(-1, keepdim=True) / tokens_B1
    return ~((advantage_BT < 0) & (drift_B1 > MOST_DRIFT))


def keeps_inside_clip(log_ratio_BT: Tensor, advantage_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """PPO's clip against mu: a token goes if r has left the clip the way its advantage pushes. Where `bypass` weighs
    what stays by r, this weighs it by the truncated r."""
    del mask_BT
    limit_BT = torch.where(advantage_BT > 0, math.log(CLIP_HIGH), -math.log(CLIP_LOW))
    return log_ratio_BT * advantage_BT.sign() <= limit_BT


def keeps_second_moment(log_ratio_BT: Tensor, advantage_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """M2PO (arXiv:2510.01161): of the tokens where r has moved the way the advantage pushes, those with the largest
    |log r| go, until the mean of (log r)^2 of those that stay is at most `MOST_SECOND_MOMENT`."""
    pushed_BT = log_ratio_BT * advantage_BT.sign()
    square_N = pushed_BT[mask_BT & (pushed_BT > 0)].double().square().sort().values
    means_N = square_N.cumsum(0) / torch.arange(1, len(square_N) + 1)
    stay = int((means_N <= MOST_SECOND_MOMENT).sum())
    if stay == len(square_N):
        return torch.ones_like(mask_BT)
    return pushed_BT < square_N[stay].sqrt()  # equal ones go together


MASKS: Mapping[ImportanceSampling, Keeps] = {
    ImportanceSampling.SEQUENCE_MASK: keeps_near_sequences,
    ImportanceSampling.CLIPPED: keeps_inside_clip,
    ImportanceSampling.SECOND_MOMENT: keeps_second_moment,
}
