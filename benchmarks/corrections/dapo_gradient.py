"""DAPO's policy gradient from one prompt group, under each correction: exact moments, by enumeration of all outcomes.

The group has a trajectory of each schedule. Its advantages are those of GRPO, groups without variance are drawn again,
weights are truncated as the defaults do, and the gradient is that of a step's first mini-batch (pi_theta = pi_prox).
What is compared with is the same gradient from a group that the target policy has sampled.

Axes as in `softmax_sequence_model`; XYZ are the trajectories of the three members.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from benchmarks.corrections.softmax_sequence_model import World, scheduled_log_probs, trajectory_probs
from recipe.async_dapo.training.importance_sampling import mixture_token_log_probs

CLIP_LOW, CLIP_HIGH, DUAL_CLIP = 0.8, 1.28, 10.0  # the recipe's clip_ratio_low, clip_ratio_high, clip_ratio_c
TRUNCATION = 2.0  # algorithm.rollout_correction.rollout_is_threshold
STALE_SHARE = 0.3  # of the logits after a switch, that of the weights whose KV cache is kept
MEMBERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How a group came about.

    `schedule_CT`: the version of each member's tokens. `stale_share`: what a kept KV cache holds on to, 0 without one.
    """

    schedule_CT: Tensor
    stale_share: float = 0.0

    def sampled_log_probs(self, world: World) -> Tensor:
        """[C, X, T]: what the engine samples with, and records."""
        if not self.stale_share:
            return scheduled_log_probs(world.log_pi_JXT, self.schedule_CT)
        log_q_CXT = torch.empty(len(self.schedule_CT), *world.model.mask_XT.shape, dtype=torch.float64)
        for c, versions_T in enumerate(self.schedule_CT.tolist()):
            for t, version in enumerate(versions_T):
                logits_PV = torch.lerp(
                    world.logits_JPV[version], world.logits_JPV[versions_T[0]], self.stale_share * (t > 0)
                )
                log_q_CXT[c, :, t] = world.model.token_log_probs(logits_PV)[:, t]
        return log_q_CXT


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientMoments:
    mean_D: Tensor
    variance: float  # of one group, summed over D


# Coefficient of A_i times a token's score -> from its ratio p / mu [..., X, T], and whether the advantage is positive.
Coefficient = Callable[[Tensor, bool], Tensor]


def _clipped(ratio: Tensor, is_positive: bool) -> Tensor:
    """Of PPO's -min(r A, clip(r) A), with dual clip: r where it has a gradient."""
    has_gradient = ratio <= CLIP_HIGH if is_positive else (ratio >= CLIP_LOW) & (ratio <= DUAL_CLIP)
    return torch.where(has_gradient, ratio, 0.0)


def _by_sequence(ratio: Tensor, limit: float) -> Tensor:
    return ratio.prod(-1, keepdim=True).clamp(max=limit).expand_as(ratio)


DECOUPLED: dict[str, Coefficient] = {
    "none": lambda ratio, _: torch.ones_like(ratio),
    "bypass": _clipped,
    "decoupled": lambda ratio, _: ratio.clamp(max=TRUNCATION),
    "decoupled by sequence": lambda ratio, _: _by_sequence(ratio, TRUNCATION),
    "decoupled by sequence, not truncated": lambda ratio, _: _by_sequence(ratio, torch.inf),
}
MIXTURE: dict[str, Coefficient] = {
    name.replace("decoupled", "mixture"): DECOUPLED[name] for name in list(DECOUPLED)[2:]
}


def on_policy(world: World) -> GradientMoments:
    """What the corrections are measured by."""
    own_CXT = world.log_p_XT.expand(MEMBERS, -1, -1)
    return _moments(world, own_CXT, torch.zeros_like(own_CXT)[:, :, None, None], DECOUPLED["none"])


def corrected(world: World, rollout: Rollout) -> Mapping[str, GradientMoments]:
    """Of each correction, by name."""
    own_CXT = rollout.sampled_log_probs(world)
    decoupled = (world.log_p_XT - own_CXT)[:, :, None, None]
    mixture = world.log_p_XT[:, None, None] - _mixtures(world, rollout, own_CXT)
    return {name: _moments(world, own_CXT, decoupled, coefficient) for name, coefficient in DECOUPLED.items()} | {
        name: _moments(world, own_CXT, mixture, coefficient) for name, coefficient in MIXTURE.items()
    }


def _mixtures(world: World, rollout: Rollout, own_CXT: Tensor) -> Tensor:
    """[C, X, L, L, T]: what `group_mixture` makes of a member's tokens, by the lengths of the two others."""
    longest = world.model.mask_XT.shape[1]
    fresh_CXT = scheduled_log_probs(world.log_pi_JXT, rollout.schedule_CT)
    mixed = torch.empty(MEMBERS, len(own_CXT[0]), longest, longest, longest, dtype=torch.float64)
    for member in range(MEMBERS):
        others = [c for c in range(MEMBERS) if c != member]
        for lens_tok in product(range(1, longest + 1), repeat=2):
            schedules = [rollout.schedule_CT[member]]
            for other, length in zip(others, lens_tok, strict=True):
                known = rollout.schedule_CT[other][:length]
                schedules.append(torch.cat([known, known[-1:].expand(longest - length)]))
            log_q_KXT = scheduled_log_probs(world.log_pi_JXT, torch.stack(schedules))
            mixture_XT = mixture_token_log_probs(log_q_KXT, torch.ones(MEMBERS), world.model.mask_XT)
            moved_XT = own_CXT[member] + mixture_XT - fresh_CXT[member]
            mixed[member, :, lens_tok[0] - 1, lens_tok[1] - 1] = moved_XT
    return mixed


def _moments(world: World, own_CXT: Tensor, log_ratio: Tensor, coefficient: Coefficient) -> GradientMoments:
    gradient_XYZD, valid_XYZ = group_gradients(world, log_ratio, coefficient)
    weight_XYZ = torch.einsum("x,y,z->xyz", *trajectory_probs(world.model, own_CXT)) * valid_XYZ
    weight_XYZ /= weight_XYZ.sum()
    mean_D = torch.einsum("xyz,xyzd->d", weight_XYZ, gradient_XYZD)
    second = torch.einsum("xyz,xyzd,xyzd->", weight_XYZ, gradient_XYZD, gradient_XYZD)
    return GradientMoments(mean_D=mean_D, variance=float(second - mean_D.square().sum()))


def group_gradients(world: World, log_ratio: Tensor, coefficient: Coefficient) -> tuple[Tensor, Tensor]:
    """Gradient of every outcome of a group, [X, Y, Z, D], and whether the group is valid, [X, Y, Z].

    Args:
        log_ratio: log p / mu, [C, X, L, L, T] by the lengths of the two other members, or with 1 in the place of L
            where those do not matter.
    """
    model = world.model
    reward_CXYZ = torch.stack(torch.meshgrid(*[world.reward_X] * MEMBERS, indexing="ij"))
    std_XYZ = reward_CXYZ.std(0)
    advantage_CXYZ = (reward_CXYZ - reward_CXYZ.mean(0)) / (std_XYZ + 1e-6)
    score_XTD = model.token_scores(world.logits_JPV[-1])
    ratio = torch.where(model.mask_XT[:, None, None], log_ratio, 0.0).exp()
    index_X = model.length_X - 1 if ratio.shape[2] > 1 else torch.zeros_like(model.length_X)
    gradient = torch.zeros(*std_XYZ.shape, score_XTD.shape[-1], dtype=torch.float64)
    for member in range(MEMBERS):
        advantage = advantage_CXYZ[member].movedim(member, 0)[..., None]
        for is_positive in (True, False):
            table = torch.einsum("xlmt,xtd->xlmd", coefficient(ratio[member], is_positive), score_XTD)
            own = table[:, index_X[:, None], index_X[None, :]]  # [own, other, other, D]
            signed = advantage.clamp(min=0) if is_positive else advantage.clamp(max=0)
            gradient += (signed * own).movedim(0, member) / MEMBERS
    return gradient, std_XYZ > 0
