"""`async_dapo.importance_sampling=balance`: log-probs of a batch under every policy version that its groups mix.

The newest version's are `old_log_probs`. Each older one takes a forward pass with its weights, which training workers
keep in CPU memory (`weights/snapshots.py`), over the trajectories of the groups that have tokens of it.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig
from torch import Tensor
from transfer_queue import KVBatchMeta

from .. import store
from ..config import AsyncDAPOConfig, ConfigError
from ..core.staleness import StalenessLimit
from ..core.version_mixture import plan_mixtures
from ..weights.snapshots import SnapshotRoom
from .importance_metrics import mixture_metrics
from .version_mixture import group_mixture, segments_of

logger = logging.getLogger(__name__)


class BalanceHeuristic:
    """Keeps the last `max_staleness` versions of the weights, and mixes what they say of a batch.

    Snapshots are not part of a checkpoint. After a resume, a group with tokens of a version that is not at hand is left
    as it was recorded, which is `decoupled`, until `max_staleness` steps have passed.
    """

    def __init__(self, workers: Any, config: DictConfig, options: AsyncDAPOConfig) -> None:
        """
        Raises:
            ConfigError: if the snapshots have no room on a node.
        """
        rollout = config.actor_rollout_ref.rollout
        self._workers, self._temperature = workers, rollout.temperature
        self._limit = StalenessLimit(max_staleness=options.max_staleness)
        self._keeps_versions = options.drains and options.max_tokens_per_round is None
        micro_batch = 1 if rollout.log_prob_use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu
        self._multiple = workers.world_size * micro_batch
        self._at_hand: set[int] = set()
        check_room(workers.begin_snapshots(options.snapshot_dtype.value), snapshots=options.max_staleness or 0)

    def log_probs(self, batch: KVBatchMeta, *, step: int, metrics: dict[str, float]) -> list[Tensor]:
        """What sampled each trajectory's tokens: its group's mixture, or what the engine recorded; [T] nats.

        Must be called before the weights are updated, in every step: it keeps them for the steps to come.
        """
        began_s = time.perf_counter()
        rows = store.read_fields(batch, ["policy_versions", "rollout_log_probs", "old_log_probs"])
        sampled = [versions_T >= 0 for versions_T in rows["policy_versions"]]
        versions = _compressed(rows["policy_versions"], sampled)
        groups = members_by_group(batch)
        plan = plan_mixtures([*map(segments_of, versions)], groups.values(), self._at_hand | {step - 1})
        scored = {step - 1: dict(enumerate(rows["old_log_probs"]))}
        older = plan.passes_before(step - 1)
        for version, members in older.items():
            self._workers.load_weights(version)
            scored[version] = self._score(batch, members)
        if older:
            self._workers.load_newest_weights()
        log_probs = [recorded_T.double() for recorded_T in rows["rollout_log_probs"]]
        for members in plan.groups:
            _mix(members, versions, sampled, scored, log_probs)
        scored_s, keep_from_s = time.perf_counter() - began_s, time.perf_counter()
        snapshot_bytes = self._keep(step)
        if plan.unknown_tok:
            logger.info("step %d: %d tokens corrected as under decoupled: weights not at hand", step, plan.unknown_tok)
        metrics |= mixture_metrics(
            plan,
            older=older,
            batch_tok=sum(len(versions[row]) for members in groups.values() for row in members),
            keeps_versions=self._keeps_versions,
            log_probs_s=scored_s,
            keep_s=time.perf_counter() - keep_from_s,
            snapshot_bytes=snapshot_bytes,
        )
        return log_probs

    def _keep(self, step: int) -> int:
        """Returns the bytes of all snapshots of all ranks."""
        oldest = self._limit.oldest_trainable(step + 1)
        self._at_hand = {version for version in self._at_hand | {step - 1} if version >= oldest}
        return sum(self._workers.keep_weights(step - 1, oldest))

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
        return dict(zip(rows, store.read_log_probs(part), strict=True))


def members_by_group(batch: KVBatchMeta) -> dict[str, list[int]]:
    """Trajectories of a prompt, those of one output index together; without verl's padding."""
    groups: dict[str, list[int]] = {}
    for row, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
        if not store.is_padding(tag):
            uid, _, index = key.split("_")
            groups.setdefault(f"{uid}_{index}", []).append(row)
    return groups


def check_room(ranks: Iterable[SnapshotRoom], *, snapshots: int) -> None:
    """
    Raises:
        ConfigError: if the snapshots of a node's ranks, and the copies of their newest weights, exceed its free memory.
    """
    needed: Counter[str] = Counter()
    optimizers: Counter[str] = Counter()
    available: dict[str, int] = {}
    for rank in ranks:
        needed[rank.node] += snapshots * rank.snapshot_bytes + rank.newest_bytes
        optimizers[rank.node] += rank.optimizer_bytes
        available[rank.node] = min(available.get(rank.node, rank.available_bytes), rank.available_bytes)
    for node, num_bytes in needed.items():
        free = available[node] - optimizers[node]
        if num_bytes > free:
            raise ConfigError(
                "async_dapo.importance_sampling",
                "balance",
                f"{snapshots} earlier versions of the weights take {num_bytes / 1e9:.1f} GB of CPU memory on a node "
                f"with {free / 1e9:.1f} GB free beside the optimizer's state; lower async_dapo.max_staleness, set "
                "async_dapo.snapshot_dtype=bfloat16, or use importance_sampling=decoupled",
            )


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
