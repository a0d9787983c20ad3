"""The replay buffer of a run, but for its rounds: how it is made, goes on from a checkpoint, and serves a validation.

`replay_buffer.py` has the rounds.
"""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from .. import store
from ..config.extensions import declared, load
from ..config.options import AsyncDAPOConfig
from ..config.values import ConfigError
from ..core.concurrency import ConcurrencyState
from ..core.pool import PromptPool
from ..core.trajectory import PromptGroup
from ..rollout.manager import AsyncDAPOAgentLoopManager
from .checkpoints import RolloutState
from .observer import Observer
from .source import Loader, Source


class RunReplayBuffer(ReplayBuffer):
    """verl's replay buffer with the pool of prompt groups, what the next round is sized by, and what extensions add.

    Args:
        options: the recipe's options.
        draw: draws that many prompts from the data loader.

    Attributes:
        manager: of the agent loops, attached before the first round.
    """

    manager: AsyncDAPOAgentLoopManager
    _pool_class: type[PromptPool] = PromptPool

    def __init__(self, options: AsyncDAPOConfig, draw: Callable[[int], list[PromptGroup]]) -> None:
        self.options = options
        self.source: Source = Loader(draw)
        self.observers: dict[str, Observer] = {}  # by their extensions
        for name in options.extensions:
            self._plug_in(name)
        self.mix = self.source.mix(options.over_sampling())
        self.round_size = options.round_size()
        self._concurrency_state: ConcurrencyState | None = None
        self.left_out = 0  # trajectories of a validation that failed [count]
        self.pool = self._pool_class(
            mix=self.mix,
            mixes_versions=options.mixes_versions,
            stop_rule=options.stop_rule,
            staleness=options.staleness,
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
        self.manager = manager

    def state(self) -> RolloutState:
        """What a checkpoint needs to go on as if nothing had happened."""
        return RolloutState(
            pool=self.pool.state(),
            over_sampling=self.mix.over_sampling.state(),
            ended=self.round_size.ended,
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
        self.mix.over_sampling.restore(state.over_sampling)
        self.round_size.ended = state.ended
        self._concurrency_state = state.concurrency
        if other := {len(group.trajectories) for group in self.pool.held} - {self.options.rollout_n}:
            raise ConfigError(
                "actor_rollout_ref.rollout.n",
                self.options.rollout_n,
                f"the checkpoint holds groups of {other.pop()}; resume with that, or set trainer.resume_mode=disable",
            )

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
