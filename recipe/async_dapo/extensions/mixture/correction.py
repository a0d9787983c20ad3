"""`async_dapo.importance_sampling=mixture`: log-probs of a batch under every policy version that its groups mix.

The newest version's are `old_log_probs`. Each older one takes a forward pass with its weights, which training workers
keep in CPU memory (`snapshots.py`), over the trajectories of the groups that have tokens of it.

The mixture of a group is the mean of its members' schedules, as if each member could have come from any of them; where
trajectories keep one version, that is sum_j alpha_j pi_j with alpha_j = n_j / n. Mixtures are those of groups, not of
the batch: old versions hold more of the long, hard prompts, and shares of the whole batch would be wrong for every one
of them (`balance_heuristic.py`). Which forward passes that takes is decided in `plan.py`.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from omegaconf import DictConfig
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.utils.padding import response_from_nested

from ... import store
from ...config.options import AsyncDAPOConfig
from ...record.keys import PREFIX
from ...weights.sender import on_ranks
from .balance_heuristic import group_mixture, segments_of
from .plan import plan_mixtures

logger = logging.getLogger(__name__)

NAME = "mixture"  # of this extension


class Mixture:
    """Keeps the last `max_staleness` versions of the weights, and mixes what they say of a batch.

    Snapshots are not part of a checkpoint. After a resume, a group with tokens of a version that is not at hand is left
    as it was recorded, which is `decoupled`, until `max_staleness` steps have passed.
    """

    def __init__(self, workers: Any, config: DictConfig, options: AsyncDAPOConfig) -> None:
        rollout = config.actor_rollout_ref.rollout
        self._workers, self._temperature = workers, rollout.temperature
        self._correction = config.algorithm.rollout_correction
        self._limit = options.staleness
        micro_batch = 1 if rollout.log_prob_use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu
        self._multiple = workers.world_size * micro_batch
        self._kept_versions: set[int] = set()
        self._on_ranks = partial(on_ranks, workers, options.weight_update_timeout_s, NAME)
        self._on_ranks("snapshots.begin")

    def log_probs(self, batch: KVBatchMeta, *, step: int, metrics: dict[str, float]) -> list[Tensor]:
        """What sampled each trajectory's tokens: its group's mixture, or what the engine recorded; [T] nats.

        Must be called before the weights are updated, in every step: it keeps them for the steps to come.
        """
        rows = store.read_fields(batch, ["policy_versions", "rollout_log_probs", "old_log_probs"])
        sampled = [versions_T >= 0 for versions_T in rows["policy_versions"]]
        versions = _compressed(rows["policy_versions"], sampled)
        groups = members_by_group(batch)
        plan = plan_mixtures([*map(segments_of, versions)], groups.values(), self._kept_versions | {step - 1})
        scored = {step - 1: dict(enumerate(rows["old_log_probs"]))}
        older = plan.passes_before(step - 1)
        for version, members in older.items():
            self._on_ranks("snapshots.load", version)
            scored[version] = self._score(batch, members)
        if older:
            self._on_ranks("snapshots.load_newest")
        log_probs = [recorded_T.double() for recorded_T in rows["rollout_log_probs"]]
        for members in plan.groups:
            _mix(members, versions, sampled, scored, log_probs)
        snapshot_bytes = self._keep(step)
        if plan.unknown_tok:
            logger.info("step %d: %d tokens corrected as under decoupled: weights not at hand", step, plan.unknown_tok)
        batch_tok = max(1, sum(len(versions[row]) for members in groups.values() for row in members))
        values = {
            "scored_trajectories": sum(map(len, older.values())),
            "token_share": plan.mixed_tok / batch_tok,
            "unknown_share": plan.unknown_tok / batch_tok,
            "snapshot_bytes": snapshot_bytes,
        }
        metrics |= {f"{PREFIX}mixture/{name}": float(value) for name, value in values.items()}
        return log_probs

    def weigh(
        self,
        batch: KVBatchMeta,
        log_ratio_BT: Tensor,
        mask_BT: Tensor,
        lens_tok: Sequence[int],
        metrics: dict[str, float],
    ) -> None:
        """Put the weights of ratios in the place of verl's, by token or sequence, truncated as configured.

        Args:
            log_ratio_BT: [B, T] log pi_prox less the log-prob of what sampled the token, nats.
            mask_BT: [B, T] tokens in the loss.
            lens_tok: of the responses.
        """
        weights_BT, values = compute_rollout_correction_weights(
            log_ratio=log_ratio_BT,
            response_mask=mask_BT,
            rollout_is=self._correction.rollout_is,
            rollout_is_threshold=self._correction.rollout_is_threshold,
            rollout_is_batch_normalize=self._correction.rollout_is_batch_normalize,
        )
        rows = [row_T[:length] for row_T, length in zip(weights_BT, lens_tok, strict=True)]
        store.write_field(batch, "rollout_is_weights", rows)
        metrics |= {f"rollout_corr/{name}": float(value) for name, value in values.items()}

    def _keep(self, step: int) -> int:
        """Returns the bytes of all snapshots of all ranks."""
        oldest = self._limit.oldest_trainable(step + 1)
        self._kept_versions = {version for version in self._kept_versions | {step - 1} if version >= oldest}
        return sum(self._on_ranks("snapshots.keep", step - 1, oldest))

    def _score(self, batch: KVBatchMeta, members: Sequence[int]) -> dict[int, Tensor]:
        """Log-probs of these trajectories under the weights that are loaded, in whole micro-batches of every rank."""
        num = min(len(batch), -(-len(members) // self._multiple) * self._multiple)
        chosen = set(members)
        others = (row for row in range(len(batch)) if row not in chosen)
        rows = [*members, *(next(others) for _ in range(num - len(members)))]
        keys, tags = zip(*((batch.keys[row], batch.tags[row]) for row in rows), strict=True)
        part = KVBatchMeta(partition_id=batch.partition_id, keys=list(keys), tags=list(tags))
        part.extra_info.update(calculate_entropy=False, compute_loss=False, temperature=self._temperature)
        self._workers.compute_log_prob(part)
        data = store.read(part, ["log_probs", "response_mask"])  # those that have just been computed, nats
        log_probs = response_from_nested(data["log_probs"], data["response_mask"])
        return dict(zip(rows, log_probs.unbind(), strict=True))


def _mix(
    members: Sequence[int],
    versions: Sequence[Tensor],
    sampled: Sequence[Tensor],
    scored: Mapping[int, Mapping[int, Tensor]],
    log_probs: list[Tensor],
) -> None:
    """Put a group's mixture in the place of what was recorded of it."""
    masks = [sampled[row] for row in members]
    present = {int(version) for row in members for version in versions[row].unique()}
    mixed = group_mixture(
        [versions[row] for row in members],
        {version: _compressed([scored[version][row] for row in members], masks) for version in present},
        _compressed([log_probs[row] for row in members], masks),
    )
    for row, mask_T, mixed_T in zip(members, masks, mixed, strict=True):
        log_probs[row] = log_probs[row].masked_scatter(mask_T, mixed_T)


def _compressed(rows: Sequence[Tensor], masks: Sequence[Tensor]) -> list[Tensor]:
    return [row[mask_T] for row, mask_T in zip(rows, masks, strict=True)]


def members_by_group(batch: KVBatchMeta) -> dict[str, list[int]]:
    """Trajectories of a prompt, those of one output index together; without verl's padding."""
    groups: dict[str, list[int]] = {}
    for row, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
        if not store.is_padding(tag):
            uid, _, index = key.split("_")
            groups.setdefault(f"{uid}_{index}", []).append(row)
    return groups
