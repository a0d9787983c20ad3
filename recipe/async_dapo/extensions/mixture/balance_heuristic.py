"""Token log-probs of mixtures: of the versions in a prompt's group, by the balance heuristic.

Let p be the target policy, q_j behaviour policy j with n_j trajectories, N = sum_j n_j, alpha_j = n_j / N. Both weights
go into the same estimate of E_p[f], (1/N) sum_i w_i f(x_i), and make it unbiased:

    uniform   w = p(x) / q_own(x)                  any mix of versions, also inside a trajectory (CoPRIS eq. 6-8)
    mixture   w = p(x) / sum_j alpha_j q_j(x)      Owen 2013, Monte Carlo theory, methods and examples, chapter 9

The balance heuristic's variance never exceeds that of uniform weights on the same data, and exceeds that of any other
partition of unity by at most (1/min_j n_j - 1/N) mu^2 (Owen 2013, Theorem 9.8). What it needs:

- The log-prob of EVERY trajectory under EVERY behaviour policy of its group (`correction.py`).
- Counts per prompt. Old versions hold more of the long, hard prompts; with one n_j for the whole batch a prompt's
  weights do not average to 1: biased. Any split that does not look at tokens will do.
- For partial rollout: the positions at which the version changes, known up to the longest trajectory's end, as under
  `max_tokens_per_round`. A row of `log_q` is then one such schedule instead of one version.
- A baseline with the same mean for every member. These weights are unbiased summed over the versions, not per member:
  a leave-one-out mean of raw rewards is biased with them, one of uniformly weighted rewards is not.

No weight repairs a batch that was selected by its outcome, such as the trajectories that finished first.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .plan import Segments

_LOG_PROB_TOLERANCE = 1e-3  # nats above 0 that engines produce by rounding


def mixture_token_log_probs(log_q_KBT: Tensor, counts_K: Tensor, mask_BT: Tensor) -> Tensor:
    """Token log-probs of the mixture sum_k alpha_k q_k: log q_mix(x_t | x_<t), [B, T] float64 nats, 0 outside the mask.

    In place of `rollout_log_probs` they turn verl's token ratios, truncation and masks into those of the balance
    heuristic: their sum over a trajectory is the log of the mixture. q_mix(x_t | x_<t) weighs policy k by its posterior
    alpha_k q_k(x_<t), not by alpha_k: with constant alpha_k per token the estimate is biased.

    Args:
        log_q_KBT: log-probs under every behaviour policy, nats; never read outside the mask.
        counts_K: trajectories of each.
        mask_BT: [B, T] bool or 0/1, tokens that a policy generated.

    Raises:
        ValueError: on shapes that do not fit, counts below 1, log-probs that are NaN or positive, or a trajectory that
            no behaviour policy can generate.
    """
    if log_q_KBT.shape != (len(counts_K), *mask_BT.shape):
        raise ValueError(
            f"log_q_KBT {tuple(log_q_KBT.shape)}: does not fit counts_K {tuple(counts_K.shape)} and mask_BT "
            f"{tuple(mask_BT.shape)}"
        )
    counts_K = counts_K.to(log_q_KBT.device, torch.float64)
    if not (counts_K.isfinite().all() and (counts_K >= 1).all()):
        raise ValueError("counts_K: must be >= 1 and finite")
    log_q_KBT = torch.where(mask_BT.bool(), log_q_KBT.double(), 0.0)
    if not (log_q_KBT <= _LOG_PROB_TOLERANCE).all():
        raise ValueError("log_q_KBT: NaN or positive; log-probs must be known and <= 0 nats under the mask")
    log_alpha_K = counts_K.log() - counts_K.sum().log()
    prefix_BT = torch.logsumexp(log_q_KBT.cumsum(-1) + log_alpha_K[:, None, None], dim=0)
    if torch.isneginf(prefix_BT).any():
        raise ValueError("log_q_KBT: probability 0 for a trajectory under all its behaviour policies; one generated it")
    return torch.diff(prefix_BT, dim=-1, prepend=torch.zeros_like(prefix_BT[:, :1]))


def segments_of(versions_T: Tensor) -> Segments:
    """Of the versions that sampled a trajectory's tokens, [T] integer."""
    versions, counts = torch.unique_consecutive(versions_T, return_counts=True)
    return list(zip(versions.tolist(), counts.tolist(), strict=True))


def group_schedules(versions: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Distinct schedules of a group's members, [K, T], and how many have each, [K].

    T is the longest member's length. Beyond a member's own end its schedule goes on with its last version: exact where
    a trajectory keeps its version, an assumption where it would have been interrupted again.
    """
    longest = max(map(len, versions))
    extended_BT = torch.stack([torch.cat([own, own[-1:].expand(longest - len(own))]) for own in versions])
    return torch.unique(extended_BT, dim=0, return_counts=True)


def group_mixture(
    versions: Sequence[Tensor], scored: Mapping[int, Sequence[Tensor]], recorded: Sequence[Tensor]
) -> list[Tensor]:
    """Log-probs of a group's tokens under its mixture, [T] float64 nats for each member.

    An engine differs a little from the trainer under the same weights. Over a long answer that would add up to a
    preference for one version, so the trainer's log-probs alone say how the mixture differs from the version that
    sampled a token, and what the engine recorded is moved by that difference. With equal versions it stays as it is.

    Args:
        versions: of each member's tokens, [T] integer.
        scored: version -> the trainer's log-probs of all members' tokens under it, [T] nats.
        recorded: `rollout_log_probs`, [T] nats.
    """
    schedule_KT, counts_K = group_schedules(versions)
    versions_J = torch.tensor(sorted(scored))
    log_pi_JBT = torch.stack([pad_sequence(list(scored[int(j)]), batch_first=True) for j in versions_J]).double()
    mask_BT = pad_sequence([torch.ones_like(own, dtype=torch.bool) for own in versions], batch_first=True)
    version_BT = pad_sequence(list(versions), batch_first=True, padding_value=int(versions_J[0]))
    row_KT, row_BT = (torch.searchsorted(versions_J, which.long()) for which in (schedule_KT, version_BT))
    log_q_KBT = torch.stack([log_pi_JBT.gather(0, row_T.expand_as(mask_BT)[None])[0] for row_T in row_KT])
    mixture_BT = mixture_token_log_probs(log_q_KBT, counts_K, mask_BT)
    moved_BT = mixture_BT - log_pi_JBT.gather(0, row_BT[None])[0]
    return [own.double() + moved_T[: len(own)] for own, moved_T in zip(recorded, moved_BT, strict=True)]
