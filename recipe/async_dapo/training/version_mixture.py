"""The balance heuristic over the members of a prompt group: which log-probs it needs, and what comes of them.

The schedule of a trajectory says which policy version sampled each of its tokens. The mixture of a group is the mean of
its members' schedules, as if each member could have come from any of them; where trajectories keep one version, that is
sum_j alpha_j pi_j with alpha_j = n_j / n. Mixtures are those of groups, not of the batch: old versions hold more of the
long, hard prompts, and shares of the whole batch would be wrong for every one of them (`importance_sampling.py`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .importance_sampling import mixture_token_log_probs


@dataclass(frozen=True, slots=True, kw_only=True)
class MixturePlan:
    """Which trajectories of a batch get a mixture, and which forward passes that takes."""

    groups: list[list[int]]  # members of each mixed group
    passes: dict[int, list[int]]  # policy version -> trajectories to be scored by it, ascending
    mixed_tok: int  # of these groups
    unknown_tok: int  # of groups that mix versions, some of which are not at hand: left as they are
    extended_share: float  # of the mixtures' terms, those beyond the end of the member whose schedule it is [0-1]


def plan_mixtures(versions: Sequence[Tensor], groups: Mapping[str, list[int]], at_hand: Collection[int]) -> MixturePlan:
    """Groups whose members have different schedules; the others' mixture is what sampled them.

    Args:
        versions: of each trajectory's sampled tokens, [T] integer; empty for one that is left out.
        groups: members by any label.
        at_hand: versions whose log-probs can be computed.
    """
    mixed: list[list[int]] = []
    passes: dict[int, set[int]] = {}
    mixed_tok = unknown_tok = terms = extended = 0
    for rows in groups.values():
        members = [row for row in rows if len(versions[row])]
        lens_tok = [len(versions[row]) for row in members]
        if not members or len(schedules := group_schedules([versions[row] for row in members])[0]) < 2:
            continue
        present = set(torch.unique(schedules).tolist())
        if not present <= set(at_hand):
            unknown_tok += sum(lens_tok)
            continue
        mixed.append(members)
        mixed_tok += sum(lens_tok)
        for version in present:
            passes.setdefault(version, set()).update(members)
        terms += len(members) * sum(lens_tok)
        extended += sum(max(0, own - other) for own in lens_tok for other in lens_tok)
    return MixturePlan(
        groups=mixed,
        passes={version: sorted(rows) for version, rows in sorted(passes.items())},
        mixed_tok=mixed_tok,
        unknown_tok=unknown_tok,
        extended_share=extended / terms if terms else 0.0,
    )


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
