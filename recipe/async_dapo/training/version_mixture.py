"""The balance heuristic over the members of a prompt group: what the mixture of a group makes of its tokens' log-probs.

The mixture of a group is the mean of its members' schedules, as if each member could have come from any of them; where
trajectories keep one version, that is sum_j alpha_j pi_j with alpha_j = n_j / n. Mixtures are those of groups, not of
the batch: old versions hold more of the long, hard prompts, and shares of the whole batch would be wrong for every one
of them (`importance_sampling.py`). Which forward passes that takes is decided in `core/version_mixture.py`.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core.version_mixture import Segments
from .importance_sampling import mixture_token_log_probs


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
