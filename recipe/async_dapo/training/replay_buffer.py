"""Event-driven replay buffer: opens a round, waits for its stop, and hands exactly B valid groups to the trainer."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from transfer_queue import KVBatchMeta

from .. import store
from ..config.options import S
from ..core.ledger import check_batch
from ..core.outcome import Verdict
from ..core.round import RoundSpec
from ..core.staleness import VersionShares
from ..core.trajectory import PromptGroup
from ..record.keys import PREFIX
from ..rollout.coordinator import RoundEvent
from ..rollout.manager import RoundRecord
from .metrics import round_metrics
from .run_replay_buffer import RunReplayBuffer
from .too_few_groups import check_part


class RoundReplayBuffer(RunReplayBuffer):
    """Serves verl's `sample` for the training and the validation partition; never polls."""

    withheld_tok = 0  # of the batch in training [tokens]
    _has_opened = False
    _num_gen_batches: Mapping[str, Fraction] = {}  # of the step, by part of the mix

    def open_round(self, step: int) -> None:
        """Top the pool up to the over-sampling target and start the step's round."""
        self._num_gen_batches = {}
        if not self._has_opened:  # the engines say what capacity they have
            self.manager.open_engines(self._concurrency_state)
            self._has_opened = True
        groups = self._top_up(step)
        self.manager.open_round(self._spec(step), groups)

    def end_round(self) -> None:
        """Stop a round that goes on while its batches are trained: there is none."""

    def _top_up(self, step: int, *, goes_on: bool = False) -> list[PromptGroup]:
        """All available groups, and as many new ones as are missing.

        Args:
            goes_on: the round is open, and will hand over what is carried: nothing is retired.
        """
        if not goes_on:
            store.forget_groups(self.pool.retire(step), partition_id=store.TRAIN)
        for part, count in self.pool.missing_for_round().items():
            self._add_prompts(part, count, step, batches=Fraction(1))
        return self.pool.dispatch()

    def _spec(self, step: int) -> RoundSpec:
        return self._make_spec(RoundSpec, round_id=f"step-{step}", must_finish=self.pool.must_finish(step))

    def _make_spec(self, kind: type[S], **more: Any) -> S:
        capacity = self.manager.capacity
        return self.options.round_spec(kind, capacity=capacity, pool=self.pool, round_size=self.round_size, **more)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Wait for the open round to stop.

        Returns:
            The step's trajectories, exactly B groups of n, and the round's metrics.
        """
        if partition_id == store.VAL:
            return self._sample_validation()
        while self.manager.next_event() is RoundEvent.NEEDS_PROMPTS:
            self._refill(global_steps)
        record = self.manager.close_round()
        self._note_ended(record)
        record = replace(record, summary=self.pool.settle(record.summary, record.workers.unfinished))
        redrawn = [outcome.prompt_uid for outcome in record.summary.ended(Verdict.REDRAWN)]
        store.forget_groups(redrawn, partition_id=store.TRAIN)
        return self._batch(record, global_steps)

    def _note_ended(self, record: RoundRecord) -> None:
        """What is seen of groups before the pool takes them back."""
        for observer in self.observers.values():
            observer.ended(record)

    def _batch(self, record: RoundRecord, global_steps: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """The step's trajectories, and its metrics."""
        trained_uids = record.summary.trained_uids
        # In an order that says nothing of age or time: the loss is a mean over the tokens of each mini-batch.
        batch = store.batch_of(sorted(trained_uids), partition_id=store.TRAIN)
        check_batch(batch.keys, trained_uids, groups=self.options.target_valid_groups, n=self.options.rollout_n)
        self.withheld_tok = store.withhold(batch, oldest_version=self.options.staleness.oldest_trainable(global_steps))
        versions = VersionShares.of(batch.tags, step=global_steps)
        self._learn(record, versions)
        metrics = round_metrics(
            record,
            versions,
            ledger=self.check_ledger(),
            mix=self.mix,
            withheld_tok=self.withheld_tok,
            buffered_tok=sum(group.generated_tok for group in self.pool.buffered),
        )
        for observer in self.observers.values():
            observer.batch_made(global_steps, record, batch)
            metrics |= {PREFIX + name: float(value) for name, value in observer.closed(record, versions).items()}
        return batch, metrics

    def _learn(self, record: RoundRecord, versions: VersionShares) -> None:
        """What the next round is sized by."""
        self.mix.observe(versions.partial_share, record.summary.outcomes)
        self.round_size.observe(record.summary.outcomes)
        self._concurrency_state = record.balancer.concurrency_state

    def check_ledger(self) -> dict[str, int]:
        """All terms of the ledger; see `Ledger.check`."""
        return self.pool.check_ledger(deferred=self.source.held)

    def _refill(self, step: int) -> None:
        for part, count in self.mix.to_draw(self.manager.ask("available")).items():
            check_part(part, self._num_gen_batches.get(part, 0), self.manager, self.options, self.observers.values())
            self._add_prompts(part, count, step, batches=Fraction(count, self.mix.batch_unit(part)))
        self.manager.add_groups(self.pool.dispatch())

    def _add_prompts(self, part: str, count: int, step: int, *, batches: Fraction) -> None:
        """Draw prompts, and count them as so many batches of the step's limit on these."""
        held = self.source.held
        groups = self.source.draw(count, step, part)
        self.pool.add_drawn(groups, held_back=self.source.held - held)
        self._num_gen_batches = {**self._num_gen_batches, part: batches + self._num_gen_batches.get(part, 0)}
