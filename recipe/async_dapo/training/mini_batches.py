"""A step's updates: which rows each one trains on, and equal work for all ranks in each of them."""

import logging
import math
from collections.abc import Sequence
from functools import partial

import torch
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from .. import store
from ..core.mini_batches import balanced_order, most_rows, rows_of_updates

logger = logging.getLogger(__name__)


def warn_of_shuffle(config: DictConfig) -> None:
    actor = config.actor_rollout_ref.actor
    if actor.shuffle and actor.ppo_mini_batch_size < config.data.train_batch_size:
        logger.warning(
            "actor_rollout_ref.actor.shuffle=True: training ranks shuffle apart from each other and wait for the "
            "slowest at each update; set it to False, with which each has equal work"
        )


def balance_updates(batch: KVBatchMeta, config: DictConfig, *, ranks: int) -> None:
    """verl balances a step over the training ranks; this balances each of its updates, at which all ranks meet."""
    actor = config.actor_rollout_ref.actor
    rows = actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    if rows < len(batch) and not actor.shuffle:
        work = calculate_workload(torch.tensor([tag["seq_len"] for tag in batch.tags])).tolist()
        padding, equal = map(store.is_padding, batch.tags), partial(get_seqlen_balanced_partitions, equal_size=True)
        batch.reorder(balanced_order(batch.keys, work, [*padding], ranks=ranks, rows=rows, partition=equal))


class StepUpdates:
    """The updates of a run's steps. verl counts rows, and would make more updates of a step whose trajectories have
    several. As many are made as options say, each of as many whole trajectories.

    Args:
        has_critic: a critic is trained, too.
    """

    def __init__(self, config: DictConfig, *, has_critic: bool) -> None:
        self._config = config
        self._n: int = config.actor_rollout_ref.rollout.n
        self._models = [config.actor_rollout_ref.actor, *([config.critic] if has_critic else [])]
        self._sizes = [model.ppo_mini_batch_size for model in self._models]  # as options have them

    def fit(self, keys: Sequence[str], dp_size: int, *, has_ref: bool) -> int:
        """Size the mini-batches for a step of these rows. Returns the number whose multiple the rows have to be, so
        that each update is padded to the rows of the largest.

        Args:
            has_ref: there is a reference policy.
        """
        groups, sizes, padded_rows = len({key.split("_")[0] for key in keys}), self._sizes, 1
        if len(keys) > groups * self._n:
            updates = [max(1, groups // size) for size in sizes]
            # Of so many rows, or their multiple, each rank has as many, in whole micro batches.
            finest, shared = math.lcm(*updates), math.lcm(self._n, dp_size * self._fixed_micro_batch(has_ref=has_ref))
            rows = -(-most_rows(keys, finest) // shared) * shared
            sizes, padded_rows = [rows * finest // own // self._n for own in updates], rows * finest
        for model, size in zip(self._models, sizes, strict=True):
            model.ppo_mini_batch_size = size
        return padded_rows

    def rows(self, count: int, *, ranks: int, of_policy: bool) -> list[list[int]]:
        """The rows of each update of a batch of so many rows; of a critic if it has more, unless the policy's are asked
        for. If ranks shuffle, the rows of an update are unknown where there are several: each row then counts as an
        update.
        """
        models = self._models[:1] if of_policy else self._models
        rows = min(model.ppo_mini_batch_size for model in models) * self._n
        if rows < count and any(model.shuffle for model in models):
            return rows_of_updates(count, ranks=1, rows=1)
        return rows_of_updates(count, ranks=ranks, rows=min(rows, count))

    def _fixed_micro_batch(self, *, has_ref: bool) -> int:
        """Rows of a rank that are whole micro batches in every pass and update; 1 where all of them follow the
        lengths.
        """
        policy, sizes = self._config.actor_rollout_ref, [1]
        if not policy.actor.use_dynamic_bsz:
            sizes += [policy.actor.ppo_micro_batch_size_per_gpu, policy.rollout.log_prob_micro_batch_size_per_gpu]
        if has_ref and not policy.ref.log_prob_use_dynamic_bsz:
            sizes.append(policy.ref.log_prob_micro_batch_size_per_gpu)
        return math.lcm(*sizes)
