"""Multiple importance sampling over the policy versions of a batch, and statistics that say how well it can work.

Ratios, truncation, rejection masks and pooled off-policy metrics are verl's (`rollout_corr_helper`). This file adds
weights that know of several behaviour policies, and effective sample size, Renyi-2 divergence and ratio statistics
per policy version. Torch only; float64 inside, in log space as long as possible.

Let p be the target policy, q_j behaviour policy j with n_j trajectories, N = sum_j n_j, alpha_j = n_j / N. Both weights
go into the same estimate of E_p[f], (1/N) sum_i w_i f(x_i), and make it unbiased:

    uniform   w = p(x) / q_own(x)                  any mix of versions, also inside a trajectory (CoPRIS eq. 6-8)
    balance   w = p(x) / sum_j alpha_j q_j(x)      Owen 2013, Monte Carlo theory, methods and examples, chapter 9

The balance heuristic's variance never exceeds that of uniform weights on the same data, and exceeds that of any other
partition of unity by at most (1/min_j n_j - 1/N) mu^2 (Owen 2013, Theorem 9.8). What it needs:

- The log-prob of EVERY trajectory under EVERY behaviour policy of its group. The own one is recorded when the token is
  sampled (`rollout_log_probs`); each other one is a forward pass with that version's weights.
- Counts per prompt. Old versions hold more of the long, hard prompts; with one n_j for the whole batch a prompt's
  weights do not average to 1: biased. `version_counts` counts inside groups; any split that does not look at tokens
  will do. Finer groups need fewer forward passes; one per (prompt, version) is the uniform weighting.
- For partial rollout: the positions at which the version changes, known up to the longest trajectory's end, as under
  `max_tokens_per_round`. A row of `log_q` is then one such schedule instead of one version.
- A baseline with the same mean for every member. These weights are unbiased summed over the versions, not per member:
  a leave-one-out mean of raw rewards is biased with them, one of uniformly weighted rewards is not.

No weight repairs a batch that was selected by its outcome, such as the trajectories that finished first.
"""

from typing import Literal, TypedDict, cast

import torch
from torch import Tensor

MAX_LOG = 600.0  # exp() saturates at e^600 = 4e260, so that sums over any batch stay finite in float64
_LOG_PROB_TOLERANCE = 1e-3  # nats above 0 that engines produce by rounding


class RatioStatistics(TypedDict):
    """Statistics of the token ratios r = p / q_own of one version, or of all ("overall")."""

    tokens: int
    ratio_mean: float  # 1 in expectation if the recorded behaviour log-probs are right
    ratio_max: float
    ratio_min: float
    k3_kl: float  # nats per token, mean of r - 1 - log r, estimates KL(q || p)
    ess_tok: float  # effective sample size, tokens
    renyi2: float  # exponentiated Renyi-2 divergence d_2(p || q), >= 1 in expectation


def version_counts(version_B: Tensor, group_B: Tensor) -> tuple[Tensor, Tensor]:
    """Trajectories per policy version inside each trajectory's group.

    Args:
        version_B: [B] integer, policy version of each trajectory.
        group_B: [B] integer, any label, usually the prompt; one mixture per label.

    Returns:
        versions_J: [J] distinct versions, ascending: the order of the rows of `log_q`.
        counts_JB: [J, B] int64, trajectories of version j in the group of trajectory b.
    """
    if version_B.ndim != 1 or version_B.shape != group_B.shape or version_B.numel() == 0:
        raise ValueError(
            f"version_B {tuple(version_B.shape)} and group_B {tuple(group_B.shape)}: must both be [B] with B >= 1"
        )
    versions_J, version_index_B = torch.unique(version_B, return_inverse=True)
    groups_G, group_index_B = torch.unique(group_B, return_inverse=True)
    cells = len(versions_J) * len(groups_G)
    counts_JG = torch.bincount(version_index_B * len(groups_G) + group_index_B, minlength=cells).view(-1, len(groups_G))
    return versions_J, counts_JG[:, group_index_B]


def multiple_importance_log_weights(
    log_p: Tensor, log_q: Tensor, counts: Tensor, mask_BT: Tensor | None = None
) -> Tensor:
    """Balance-heuristic log weights, log p - log sum_j alpha_j q_j; differentiable in `log_p`.

    Args:
        log_p: log-probs under the target policy, nats: [B] of whole trajectories, or [B, T] of tokens.
        log_q: the same under every behaviour policy, [J, B] or [J, B, T]. Entries with count 0 may be NaN (unknown).
        counts: [J] trajectories per behaviour policy, or [J, B] from `version_counts`. Counts are of the whole
            batch, also if only a part of its trajectories is passed.
        mask_BT: [B, T] bool or 0/1, tokens the policy generated; needed for, and only for, tokens.

    Returns:
        float64, nats. [B]: weights of whole trajectories. [B, T]: weight of the prefix that ends at the token,
        p(x_<=t) / sum_j alpha_j q_j(x_<=t), unbiased for anything that depends on that prefix only (per-decision
        importance sampling); the last column is the weight of the whole trajectory.

    Raises:
        ValueError: on shapes that do not fit, counts that are negative or all 0, log-probs that are NaN or positive
            where needed, or a trajectory that no behaviour policy can generate.
    """
    log_mixture = _log_mixture("log_q", log_q, log_p.shape, counts, mask_BT)
    return _prefix_log_probs("log_p", log_p, mask_BT) - log_mixture


def multiple_importance_weights(log_p: Tensor, log_q: Tensor, counts: Tensor, mask_BT: Tensor | None = None) -> Tensor:
    """exp of `multiple_importance_log_weights`, saturating at e^600."""
    return _saturating_exp(multiple_importance_log_weights(log_p, log_q, counts, mask_BT))


def uniform_log_weights(log_p: Tensor, rollout_log_probs: Tensor, mask_BT: Tensor | None = None) -> Tensor:
    """log p - log q_own: uniform multiple importance sampling (omega_j = n_j / N), for any mix of versions.

    `rollout_log_probs` is what each token was sampled with, concatenated over versions (CoPRIS eq. 6). Shapes and
    result as in `multiple_importance_log_weights`.
    """
    count = rollout_log_probs.new_ones(1)
    log_own = _log_mixture("rollout_log_probs", rollout_log_probs[None], log_p.shape, count, mask_BT)
    return _prefix_log_probs("log_p", log_p, mask_BT) - log_own


def mixture_token_log_probs(log_q_JBT: Tensor, counts: Tensor, mask_BT: Tensor) -> Tensor:
    """Token log-probs of the mixture sum_j alpha_j q_j: log q_mix(x_t | x_<t), [B, T] float64 nats, 0 outside the mask.

    In place of `rollout_log_probs` they turn verl's token ratios, truncation and masks into those of the balance
    heuristic: their sum over a trajectory is the log of the mixture. q_mix(x_t | x_<t) weighs version j by
    its posterior alpha_j q_j(x_<t), not by alpha_j: with constant alpha_j per token the estimate is biased.
    """
    prefix_BT = _log_mixture("log_q_JBT", log_q_JBT, mask_BT.shape, counts, mask_BT)
    return torch.diff(prefix_BT, dim=-1, prepend=torch.zeros_like(prefix_BT[:, :1]))


def effective_sample_size(log_weights: Tensor, mask: Tensor | None = None, group: Tensor | None = None) -> Tensor:
    """Kish's effective sample size (sum w)^2 / sum w^2, in [1, N]; 0 without a positive weight.

    All arguments have one shape; `mask` is bool or 0/1, `group` integers 0..G-1 such as version indices. Returns
    float64, [G] with `group`, else a scalar.
    """
    _, log_sum_G, log_sum_squares_G = _checked_log_moments(log_weights, mask, group)
    return _ess(log_sum_G, log_sum_squares_G)


def renyi2_exponentiated(
    log_weights: Tensor, mask: Tensor | None = None, group: Tensor | None = None, *, self_normalised: bool = False
) -> Tensor:
    """Exponentiated Renyi-2 divergence d_2(P || Q) = E_Q[w^2] = 1 + Var_Q[w] (Metelli et al. 2020, Remark 1).

    Arguments and shape as in `effective_sample_size`. The plain estimate is the mean of w^2, unbiased; NaN for an empty
    group. The self-normalised one divides by (mean w)^2 and is N / effective sample size; NaN also if all w are 0.
    """
    log_count_G, log_sum_G, log_sum_squares_G = _checked_log_moments(log_weights, mask, group)
    log_d2_G = log_sum_squares_G - log_count_G
    if self_normalised:
        log_d2_G = log_d2_G - 2 * (log_sum_G - log_count_G)
    return _saturating_exp(log_d2_G)


def version_statistics(
    log_ratio_BT: Tensor, version_BT: Tensor, mask_BT: Tensor
) -> dict[int | Literal["overall"], RatioStatistics]:
    """Token-ratio statistics of each policy version in the batch (ascending), then of all tokens ("overall").

    Args:
        log_ratio_BT: [B, T] nats, log p - log q_own of each token.
        version_BT: [B, T] integer, policy version that sampled the token.
        mask_BT: [B, T] bool or 0/1, generated tokens, at least one and all finite; the rest is never read.
    """
    if len(shapes := {tuple(tensor.shape) for tensor in (log_ratio_BT, version_BT, mask_BT)}) != 1:
        raise ValueError(f"log_ratio_BT, version_BT, mask_BT: shapes must be equal, got {shapes}")
    keep_BT = mask_BT.bool()
    log_ratio_N = log_ratio_BT.detach()[keep_BT].double()
    finite = int(log_ratio_N.isfinite().sum())
    if not 0 < finite == len(log_ratio_N):
        raise ValueError(f"log_ratio_BT: {finite} of {len(log_ratio_N)} generated tokens finite; must be all, and >= 1")
    versions_J, version_N = torch.unique(version_BT[keep_BT], return_inverse=True)
    rows = _ratio_statistics(log_ratio_N, version_N, len(versions_J))
    rows += _ratio_statistics(log_ratio_N, torch.zeros_like(version_N), 1)
    return dict(zip([*versions_J.tolist(), "overall"], rows, strict=True))


def _ratio_statistics(log_ratio_N: Tensor, group_N: Tensor, num_groups: int) -> list[RatioStatistics]:
    log_count_G, log_sum_G, log_sum_squares_G = _log_moments(log_ratio_N, group_N, num_groups)
    k3_N = torch.expm1(log_ratio_N.clamp(max=MAX_LOG)) - log_ratio_N
    count_G = torch.bincount(group_N, minlength=num_groups)
    edge_G = log_ratio_N.new_zeros(num_groups)
    columns = {
        "tokens": count_G,
        "ratio_mean": _saturating_exp(log_sum_G - log_count_G),
        "ratio_max": _saturating_exp(edge_G.scatter_reduce(0, group_N, log_ratio_N, "amax", include_self=False)),
        "ratio_min": _saturating_exp(edge_G.scatter_reduce(0, group_N, log_ratio_N, "amin", include_self=False)),
        "k3_kl": torch.zeros_like(edge_G).index_add(0, group_N, k3_N) / count_G,
        "ess_tok": _ess(log_sum_G, log_sum_squares_G),
        "renyi2": _saturating_exp(log_sum_squares_G - log_count_G),
    }
    rows = zip(*(column_G.tolist() for column_G in columns.values()), strict=True)
    return [cast(RatioStatistics, dict(zip(columns, row, strict=True))) for row in rows]


def _ess(log_sum_G: Tensor, log_sum_squares_G: Tensor) -> Tensor:
    return torch.where(torch.isneginf(log_sum_G), 0.0, (2 * log_sum_G - log_sum_squares_G).exp())


def _saturating_exp(log_values: Tensor) -> Tensor:
    return log_values.clamp(max=MAX_LOG).exp()


def _prefix_log_probs(name: str, log_probs: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Checked, float64; token log-probs are summed over the mask up to each token: entry t is the prefix's."""
    log_probs = log_probs.double() if mask_BT is None else torch.where(mask_BT.bool(), log_probs.double(), 0.0)
    if not (log_probs <= _LOG_PROB_TOLERANCE).all():
        raise ValueError(f"{name}: NaN or positive; log-probs must be known and <= 0 nats wherever the count is not 0")
    return log_probs if mask_BT is None else log_probs.cumsum(-1)


def _log_mixture(name: str, log_q: Tensor, shape: torch.Size, counts: Tensor, mask_BT: Tensor | None) -> Tensor:
    """log sum_j alpha_j q_j of trajectories, `shape` [B], or of prefixes, `shape` [B, T]."""
    expected_mask = None if len(shape) == 1 else shape
    if len(shape) > 2 or log_q.shape[1:] != shape or (None if mask_BT is None else mask_BT.shape) != expected_mask:
        raise ValueError(
            f"{name} {tuple(log_q.shape)} does not fit log_p {tuple(shape)}, or mask_BT is missing or does not fit: "
            "trajectories are [B] without a mask, tokens [B, T] with one; log_q has one more axis in front"
        )
    if counts.shape not in (log_q.shape[:1], log_q.shape[:2]):
        raise ValueError(f"counts {tuple(counts.shape)}: must be [J] or [J, B] of log_q {tuple(log_q.shape)}")
    counts = counts.to(log_q.device, torch.float64).reshape(*counts.shape, *[1] * (log_q.ndim - counts.ndim))
    total = counts.sum(0)
    if not (counts.isfinite().all() and (counts >= 0).all() and (total >= 1).all()):
        raise ValueError("counts: must be >= 0 and finite, with at least one trajectory in each column")
    log_q = _prefix_log_probs(name, torch.where(counts > 0, log_q, 0.0), mask_BT)
    log_mixture = torch.logsumexp(log_q + counts.log() - total.log(), dim=0)
    if torch.isneginf(log_mixture).any():
        raise ValueError(f"{name}: probability 0 for a trajectory under all its behaviour policies; one generated it")
    return log_mixture


def _checked_log_moments(log_weights: Tensor, mask: Tensor | None, group: Tensor | None) -> tuple[Tensor, ...]:
    """`_log_moments` of checked input; scalars without `group`."""
    group_all = torch.zeros_like(log_weights, dtype=torch.int64) if group is None else group.long()
    keep = torch.ones_like(group_all, dtype=torch.bool) if mask is None else mask.bool()
    if not log_weights.shape == group_all.shape == keep.shape:
        raise ValueError(f"mask, group: must be of log_weights' shape {tuple(log_weights.shape)}")
    if group_all.numel() == 0 or int(group_all.min()) < 0:
        raise ValueError("log_weights must not be empty, group must be >= 0")
    values_N = log_weights.detach()[keep].double()
    if not (values_N < torch.inf).all():
        raise ValueError("log_weights: NaN or +inf under the mask")
    moments_G = _log_moments(values_N, group_all[keep], int(group_all.max()) + 1)
    return moments_G if group is not None else tuple(moment_G[0] for moment_G in moments_G)


def _log_moments(values_N: Tensor, group_N: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Per group, [G] float64: log N, log sum w, log sum w^2 for w = e^values."""
    zeros_G = values_N.new_zeros(num_groups)
    peak_G = (zeros_G - torch.inf).scatter_reduce(0, group_N, values_N, "amax")
    shift_G = torch.where(peak_G.isfinite(), peak_G, 0.0)
    shifted_N = (values_N - shift_G[group_N]).exp()
    log_count_G = torch.bincount(group_N, minlength=num_groups).double().log()
    log_sum_G = zeros_G.index_add(0, group_N, shifted_N).log() + shift_G
    return log_count_G, log_sum_G, zeros_G.index_add(0, group_N, shifted_N.square()).log() + 2 * shift_G
