"""A step's updates: which rows each one trains on, and equal work for all ranks in each of them."""

import logging
import math
from collections.abc import Sequence
from functools import partial

import torch
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from ... import store
from ...training.step_updates import StepUpdates
from .trajectories import balanced_order, most_rows

logger = logging.getLogger(__name__)


class BalancedUpdates(StepUpdates):
    """Updates in each of which all training ranks have equal work. Of a step whose trajectories have several rows verl
    would make more updates; here as many are made as options say, each of as many whole trajectories.
    """

    def __init__(self, config: DictConfig, *, has_critic: bool) -> None:
        super().__init__(config, has_critic=has_critic)
        self._sizes = [model.ppo_mini_batch_size for model in self._models]  # as options have them
        actor = config.actor_rollout_ref.actor
        if actor.shuffle and actor.ppo_mini_batch_size < config.data.train_batch_size:
            logger.warning(
                "actor_rollout_ref.actor.shuffle=True: training ranks shuffle apart from each other and wait for the "
                "slowest at each update; set it to False, with which each has equal work"
            )

    def fit(self, keys: Sequence[str], dp_size: int, *, has_ref: bool) -> int:
        """Each update is padded to the rows of the largest."""
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

    def balance(self, batch: KVBatchMeta, *, ranks: int) -> None:
        """verl balances a step over the training ranks; this balances each of its updates, at which all ranks meet."""
        actor, rows = self._config.actor_rollout_ref.actor, self._models[0].ppo_mini_batch_size * self._n
        if rows < len(batch) and not actor.shuffle:
            work = calculate_workload(torch.tensor([tag["seq_len"] for tag in batch.tags])).tolist()
            padding, equal = map(store.is_padding, batch.tags), partial(get_seqlen_balanced_partitions, equal_size=True)
            batch.reorder(balanced_order(batch.keys, work, [*padding], ranks=ranks, rows=rows, partition=equal))

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
