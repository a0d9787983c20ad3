"""The replay buffer of engines that have GPUs of their own: a round goes on while the trainer trains its batches.

It is stopped for a checkpoint, which holds what was interrupted, and for a validation; the next step opens another.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

from transfer_queue import KVBatchMeta

from .. import store
from ..core.pool import Settlement
from ..core.rolling_round import RollingSpec
from ..rollout.coordinator import RoundEvent
from ..rollout.reports import RoundResult
from .replay_buffer import RoundReplayBuffer


class RollingReplayBuffer(RoundReplayBuffer):
    """As `RoundReplayBuffer`; `open_round` does nothing while a round is open."""

    _step = 0  # whose batch is collected; 0 = no round is open
    _opened_at = 0  # step
    _before: tuple[RoundResult, Settlement] | None = None  # of a round that was stopped before it had the step's batch

    def open_round(self, step: int) -> None:
        if self._step:
            return
        self.manager.open_engines(None if self._has_opened else self._concurrency_state)
        self._has_opened = True
        self._opened_at = step
        self._dispatched = replace(self._dispatched, groups=[], resumed=0).extended(self._top_up(step))
        self.manager.open_round(self._spec(step), self._dispatched.groups, step=step, earlier=self.earlier)
        self._step = step

    def end_round(self) -> None:
        """Stop the round, if one is open: what was interrupted comes back into the pool."""
        if not self._step:
            return
        self.manager.stop_round()
        event = self.manager.next_event()
        assert event is RoundEvent.STOPPED, f"{event} after the stop"
        result = self.manager.close_round()
        self._note_ended(result, self._step)
        self._before = self._with_what_was_before(
            result, self.pool.take_back(result.summary, result.workers.unfinished)
        )
        self._concurrency_state = result.balancer.concurrency_state
        self._step = 0

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        if partition_id == store.VAL:
            return self._sample_validation()
        result = None
        while result is None:
            while self.manager.next_event() is RoundEvent.NEEDS_PROMPTS:
                self._refill(global_steps)
            result = self.manager.hand_over()
        self._note_ended(result, global_steps)
        result, settlement = self._with_what_was_before(result, self.pool.hand_over(result.summary))
        self._before = None
        batch, metrics = self._batch(result, settlement, global_steps)
        self._go_on(global_steps + 1)
        return batch, metrics

    def _go_on(self, step: int) -> None:
        """Collect the next step's batch."""
        self._step = step
        self._num_gen_batches, self._skipped = Fraction(0), 0
        self._dispatched = self._top_up(step, goes_on=True)
        self.manager.add_groups(self._dispatched.groups)
        self.manager.resize(self._spec(step))

    def _with_what_was_before(self, result: RoundResult, settlement: Settlement) -> tuple[RoundResult, Settlement]:
        if self._before is None:
            return result, settlement
        earlier_result, earlier_settlement = self._before
        return earlier_result + result, earlier_settlement + settlement

    def _spec(self, step: int) -> RollingSpec:
        pool_size = self._pool_size()
        return self._options.rolling_spec(
            opened_at=self._opened_at,
            step=step,
            carried=self.pool.carried_versions,
            pool_size=pool_size,
            most_unfinished=self._round_size.most_unfinished(pool_size, self._over_sampling.trained_share),
            most_begun=self._over_sampling.valid_to_hold,
            valid_share=self._over_sampling.valid_share,
        )
