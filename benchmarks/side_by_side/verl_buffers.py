"""verl's own replay buffers for `side_by_side`, with options that verl passes to its default ones only, or to none.

verl loads them by path. Batches are sorted by prompt, as this recipe's are: on a CPU, where sequences are padded, it is
faster.
"""

from dataclasses import replace
from typing import Any

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from recipe.async_dapo_lab.quickstart.overrides import PROMPTS_PER_STEP

FILTER_METRIC = "acc"  # verl does not tell a buffer from outside


class SyncBuffer(ReplayBuffer):
    """verl's, with a pause between two looks and a number of batches in flight, and the batch in order."""

    def __init__(self, sampler_kwargs: Any, **arguments: Any) -> None:
        super().__init__(
            **arguments,
            sampler_kwargs=sampler_kwargs,
            poll_interval=sampler_kwargs.poll_s,
            filter_groups_metric=FILTER_METRIC,
            train_batch_size=PROMPTS_PER_STEP,
            gen_batch_size=1,
            max_inflight_gen_batches=sampler_kwargs.batches_in_flight,
        )

    def sample(self, *arguments: Any, **options: Any) -> tuple[KVBatchMeta, dict]:
        batch, metrics = super().sample(*arguments, **options)
        return sorted_by_prompt(batch), metrics


class AsyncBuffer(ReplayBufferAsync):
    """The same of verl's asynchronous modes."""

    def __init__(self, sampler_kwargs: Any, **arguments: Any) -> None:
        super().__init__(
            **arguments,
            sampler_kwargs=sampler_kwargs,
            poll_interval=sampler_kwargs.poll_s,
            filter_groups_metric=FILTER_METRIC,
        )

    def sample(self, *arguments: Any, **options: Any) -> tuple[KVBatchMeta, dict]:
        batch, metrics = super().sample(*arguments, **options)
        return sorted_by_prompt(batch), metrics


def sorted_by_prompt(batch: KVBatchMeta) -> KVBatchMeta:
    order = sorted(range(len(batch.keys)), key=lambda i: batch.keys[i])
    return replace(batch, keys=[batch.keys[i] for i in order], tags=[batch.tags[i] for i in order])
