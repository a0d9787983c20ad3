"""A step's updates: which rows each one trains on, and equal work for all ranks in each of them."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from .. import store
from ..core.mini_batches import balanced_order, rows_of_updates


def balance_updates(batch: KVBatchMeta, config: DictConfig, *, ranks: int) -> None:
    """verl balances a step over the training ranks; this balances each of its updates, at which all ranks meet."""
    actor = config.actor_rollout_ref.actor
    rows = actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    if rows < len(batch) and not actor.shuffle:
        work = calculate_workload(torch.tensor([tag["seq_len"] for tag in batch.tags])).tolist()
        padding, equal = map(store.is_padding, batch.tags), partial(get_seqlen_balanced_partitions, equal_size=True)
        batch.reorder(balanced_order(batch.keys, work, [*padding], ranks=ranks, rows=rows, partition=equal))


def fixed_micro_batch(config: DictConfig, *, has_ref: bool) -> int:
    """Rows of a rank that are whole micro batches in every pass and update; 1 where all of them follow the lengths.

    Args:
        has_ref: there is a reference policy.
    """
    policy, sizes = config.actor_rollout_ref, [1]
    if not policy.actor.use_dynamic_bsz:
        sizes += [policy.actor.ppo_micro_batch_size_per_gpu, policy.rollout.log_prob_micro_batch_size_per_gpu]
    if has_ref and not policy.ref.log_prob_use_dynamic_bsz:
        sizes.append(policy.ref.log_prob_micro_batch_size_per_gpu)
    return math.lcm(*sizes)


def updates_of(count: int, models: Sequence[DictConfig], *, n: int, ranks: int) -> list[list[int]]:
    """The rows of each update of a batch of so many rows, by the model with the fewest. If ranks shuffle, the rows of
    an update are unknown where there are several: each row then counts as an update.
    """
    rows = min(model.ppo_mini_batch_size for model in models) * n
    if rows < count and any(model.shuffle for model in models):
        return rows_of_updates(count, ranks=1, rows=1)
    return rows_of_updates(count, ranks=ranks, rows=min(rows, count))
