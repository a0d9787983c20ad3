"""Event-driven replay buffer: opens a round, waits for its stop, and hands exactly B valid groups to the trainer."""

import logging
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any
from uuid import uuid4

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from .. import store
from ..config.extensions import declared, load
from ..config.options import AsyncDAPOConfig, S
from ..config.values import ConfigError
from ..core.concurrency import ConcurrencyState
from ..core.ledger import check_batch
from ..core.outcome import EndedGroups, Verdict
from ..core.pool import PromptPool
from ..core.round import RoundSpec
from ..core.staleness import StalenessLimit, VersionShares
from ..core.trajectory import PromptGroup
from ..record.keys import PREFIX
from ..rollout.coordinator import RoundEvent
from ..rollout.manager import AsyncDAPOAgentLoopManager, RoundRecord
from .checkpoints import RolloutState
from .metrics import round_metrics
from .observer import Observer
from .source import Loader, Source
from .too_few_groups import too_many_batches, too_many_failures, too_many_set_aside

logger = logging.getLogger(__name__)


class RoundReplayBuffer(ReplayBuffer):
    """Serves verl's `sample` for the training and the validation partition; never polls.

    Args:
        options: the recipe's options.
        draw: draws that many prompts from the data loader.
    """

    def __init__(self, options: AsyncDAPOConfig, draw: Callable[[int], list[PromptGroup]]) -> None:
        self.options = options
        self.source: Source = Loader(draw)
        self.observers: dict[str, Observer] = {}  # by their extensions
        self._manager: AsyncDAPOAgentLoopManager | None = None
        self._num_gen_batches: dict[str, Fraction] = {}  # of the step, by part of the mix
        self._has_opened = False
        for name in options.extensions:
            self._plug_in(name)
        self.mix = self.source.mix(options.over_sampling())
        self._over_sampling = self.mix.over_sampling
        self.round_size = options.round_size()
        self._concurrency_state: ConcurrencyState | None = None
        self.withheld_tok = 0  # of the batch in training [tokens]
        self.left_out = 0  # trajectories of a validation that failed [count]
        self._staleness = StalenessLimit(max_staleness=options.max_staleness)
        self.pool = PromptPool(
            mix=self.mix,
            keeps_tokens=options.mixes_versions,
            stop_rule=options.stop_rule,
            staleness=self._staleness,
            new_uid=lambda: str(uuid4()),
            watches=self.observers.values(),
        )

    def _plug_in(self, name: str) -> None:
        """What an extension has here: a source of prompts, which observes, too, or an observer."""
        one = declared()[name]
        if one.source:
            self.source = self.observers[name] = load(name, one.source)(self.options, self.source)
        elif one.observer:
            self.observers[name] = load(name, one.observer)(self.options)

    def attach(self, manager: AsyncDAPOAgentLoopManager) -> None:
        self._manager = manager

    @property
    def manager(self) -> AsyncDAPOAgentLoopManager:
        assert self._manager is not None, "the manager is attached before the first round"
        return self._manager

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
            self._add_prompts(part, count, step)
            self._count_batches(part, Fraction(1))
        return self.pool.dispatch()

    def _spec(self, step: int) -> RoundSpec:
        return self._make_spec(
            RoundSpec,
            round_id=f"step-{step}",
            carried_valid_groups=self.pool.num_carried,
            must_finish=self.pool.must_finish(step),
            quotas=self.mix.quotas(self.pool.carried),
        )

    def _make_spec(self, kind: type[S], **of_round: Any) -> S:
        return self.options.round_spec(
            kind,
            capacity=self.manager.capacity,
            over_sampling=self._over_sampling,
            round_size=self.round_size,
            **of_round,
        )

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
            observer.ended(record, self.pool.in_round)

    def _batch(self, record: RoundRecord, global_steps: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """The step's trajectories, and its metrics."""
        trained_uids = record.summary.trained_uids
        # In an order that says nothing of age or time: the loss is a mean over the tokens of each mini-batch.
        batch = store.batch_of(sorted(trained_uids), partition_id=store.TRAIN)
        check_batch(batch.keys, trained_uids, groups=self.options.target_valid_groups, n=self.options.rollout_n)
        self.withheld_tok = store.withhold(batch, oldest_version=self._staleness.oldest_trainable(global_steps))
        uids = (key.split("_")[0] for key in batch.keys)
        versions = VersionShares.of(batch.tags, step=global_steps, uids=uids)
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
            metrics |= {PREFIX + name: float(value) for name, value in observer.closed(record, versions).items()}
            observer.batch_made(global_steps, record, batch)
        return batch, metrics

    def state(self) -> RolloutState:
        """What a checkpoint needs to go on as if nothing had happened."""
        return RolloutState(
            pool=self.pool.state(),
            over_sampling=self._over_sampling.state(),
            ended=self.round_size.state(),
            concurrency=self._concurrency_state,
            extensions={name: state for name, one in self.observers.items() if (state := one.state())},
        )

    def restore(self, state: RolloutState) -> None:
        """Go on from a checkpoint, also with what an extension keeps there that no option of this run asks for.

        Raises:
            ConfigError: when it holds groups of another size than `rollout.n`.
            DamagedCheckpoint: if an extension cannot read what it has written.
            LedgerError: if it does not account for every prompt.
        """
        for name, held in state.extensions.items():
            if name not in self.observers:
                self._plug_in(name)
            self.observers[name].restore(held)
        self.pool.restore(state.pool, deferred=self.source.held)
        self._over_sampling.restore(state.over_sampling)
        self.round_size.restore(state.ended)
        self._concurrency_state = state.concurrency
        if other := self.pool.group_sizes - {self.options.rollout_n}:
            raise ConfigError(
                "actor_rollout_ref.rollout.n",
                self.options.rollout_n,
                f"the checkpoint holds groups of {other.pop()}; resume with that, or set trainer.resume_mode=disable",
            )

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
            self._check_part(part)
            self._add_prompts(part, count, step)
            self._count_batches(part, Fraction(count, self.mix.batch_unit(part)))
        self.manager.add_groups(self.pool.dispatch())

    def _count_batches(self, part: str, count: Fraction) -> None:
        self._num_gen_batches = self._num_gen_batches | {part: self._num_gen_batches.get(part, Fraction(0)) + count}

    def _check_part(self, part: str) -> None:
        """
        Raises:
            ConfigError: where no more may be drawn of a part in this step.
            RuntimeError: where hardly a group of it can be complete, whatever others do.
        """
        options, ended = self.options, self.manager.ask("count_ended", part)
        if ended.is_hopeless(options.target_valid_groups):
            raise too_many_failures(ended, options)
        if ended.are_hardly_any(options.target_valid_groups):
            raise too_many_set_aside(ended, options)
        limit = options.filter.max_num_gen_batches
        if limit and self._num_gen_batches.get(part, 0) >= limit:
            of_all: EndedGroups = self.manager.ask("count_ended")
            share = of_all.valid / max(1, of_all.num_scored)
            why = next(filter(None, (one.why_few_valid(share) for one in self.observers.values())), None)
            raise too_many_batches(ended, options, why, part)

    def _add_prompts(self, part: str, count: int, step: int) -> None:
        held = self.source.held
        groups = self.source.draw(count, step, part)
        self.pool.add_drawn(groups, held_back=self.source.held - held)

    def _sample_validation(self) -> tuple[KVBatchMeta, dict[str, Any]]:
        self.manager.next_event()
        record = self.manager.close_round()
        self.manager.open_engines()  # what they say at the end of the next round has nothing of this one
        outcomes = record.summary.outcomes
        self.left_out += sum(outcome.failed for outcome in outcomes)
        for observer in self.observers.values():
            observer.validation_closed(record)
        uids = [outcome.prompt_uid for outcome in outcomes]
        store.forget_prompts(uids, partition_id=store.VAL)
        batch = store.batch_of(uids, partition_id=store.VAL)
        if not batch.keys:
            raise RuntimeError(
                "every trajectory of the validation failed: the reward function, a tool or the agent loop is broken; "
                "the workers' log has the cause of each, 'a trajectory of validation prompt ...'"
            )
        return batch, {}
