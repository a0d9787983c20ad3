"""Event-driven replay buffer: opens a round, waits for its stop, and hands exactly B valid groups to the trainer."""

import logging
from collections.abc import Callable
from typing import Any

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from . import store
from .config import AsyncDAPOConfig, ConfigError
from .coordinator import RoundEvent
from .core.length_bias import LengthBiasWindow
from .core.pool import PromptPool
from .core.trajectory import PromptGroup
from .manager import AsyncDAPOAgentLoopManager, RoundResult
from .metrics import round_metrics

logger = logging.getLogger(__name__)


class RoundReplayBuffer(ReplayBuffer):
    """Serves verl's `sample` for the training and the validation partition; never polls.

    Args:
        options: the recipe's options.
        draw: draws that many prompts from the data loader.
    """

    def __init__(self, options: AsyncDAPOConfig, draw: Callable[[int], list[PromptGroup]]) -> None:
        self._options = options
        self._draw = draw
        self._manager: AsyncDAPOAgentLoopManager | None = None
        self._num_gen_batches = 0
        self._lengths = LengthBiasWindow(options.length_bias_window)
        self.pool = PromptPool(
            target_valid_groups=options.target_valid_groups,
            over_sampling_batch_size=options.over_sampling_batch_size,
            keeps_tokens=options.keeps_tokens,
            stop_rule=options.stop_rule,
        )

    def attach(self, manager: AsyncDAPOAgentLoopManager) -> None:
        self._manager = manager

    @property
    def manager(self) -> AsyncDAPOAgentLoopManager:
        assert self._manager is not None, "the manager is attached before the first round"
        return self._manager

    def open_round(self, step: int) -> None:
        """Top the pool up to the over-sampling target and start the step's round."""
        missing = self.pool.missing_for_round()
        self._num_gen_batches = 0
        if missing:
            self._draw_batch(missing)
        self.manager.open_round(self.pool.dispatch(), step=step, carried_valid_groups=self.pool.num_carried)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Wait for the open round to stop.

        Returns:
            The step's trajectories, exactly B groups of n, and the round's metrics.
        """
        if partition_id == store.VAL:
            return self._sample_validation()
        while self.manager.next_event() is RoundEvent.NEEDS_PROMPTS:
            self._refill()
        result = self.manager.close_round()
        self._lengths.observe(result.summary.outcomes, result.unfinished)
        settlement = self.pool.settle(result.summary, result.unfinished)
        self._lengths.mark_trained(settlement.trained_uids)
        batch = store.batch_of(settlement.trained_uids, partition_id=store.TRAIN)
        self._check_batch(batch, settlement.trained_uids)
        ledger = self.pool.check_ledger()
        metrics = round_metrics(
            result, settlement, ledger, batch.tags, num_gen_batches=self._num_gen_batches, lengths=self._lengths
        )
        logger.info(_step_line(global_steps, result, metrics))
        return batch, metrics

    def _refill(self) -> None:
        limit = self._options.filter.max_num_gen_batches
        if limit and self._num_gen_batches >= limit:
            raise ConfigError(
                "algorithm.filter_groups.max_num_gen_batches",
                limit,
                f"drew {limit} batches and still has fewer than {self._options.target_valid_groups} valid groups: the "
                "task is too easy, too hard, or the reward is constant; raise the limit (0 = none) or change the data",
            )
        self._draw_batch(self.pool.refill_size)
        self.manager.add_groups(self.pool.dispatch())

    def _draw_batch(self, count: int) -> None:
        self.pool.add_drawn(self._draw(count))
        self._num_gen_batches += 1

    def _check_batch(self, batch: KVBatchMeta, uids: tuple[str, ...]) -> None:
        """Invariant 3: exactly B groups of exactly n trajectories."""
        sessions = {tuple(key.rsplit("_", 1)[0].split("_")) for key in batch.keys}
        expected = {(uid, str(i)) for uid in uids for i in range(self._options.rollout_n)}
        if sessions != expected or len(uids) != self._options.target_valid_groups:
            raise RuntimeError(f"batch is not {len(uids)} groups of {self._options.rollout_n}: {len(sessions)} sessions")

    def _sample_validation(self) -> tuple[KVBatchMeta, dict[str, Any]]:
        self.manager.next_event()
        summary = self.manager.close_round().summary
        uids = [outcome.prompt_uid for outcome in summary.outcomes]
        store.forget_prompts(uids, partition_id=store.VAL)
        return store.batch_of(uids, partition_id=store.VAL), {}


def _step_line(step: int, result: RoundResult, metrics: dict[str, float]) -> str:
    ledger = {key.rsplit("/", 1)[1]: int(value) for key, value in metrics.items() if "/ledger/" in key}
    return (
        f"step {step}: {result.summary.stop_reason} after {result.rollout_s:.2f} s, "
        f"stop latency {1000 * result.stop_latency_s:.1f} ms, ledger {ledger}"
    )
