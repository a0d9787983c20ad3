"""The trainer with engines on GPUs of their own: they generate while it trains, and it never waits for one of them.

    trainer    wait for B valid groups -- train -- leave the weights in the object store -- wait for B valid groups --
    engines    generate ----------- one at a time: take the weights ----------- generate --------------------------

Only a checkpoint and a validation stop the engines: the first holds what they have generated, the second asks all of
them under the newest weights.
"""

from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, open_dict
from transfer_queue import KVBatchMeta
from verl.checkpoint_engine import CheckpointEngineManager
from verl.workers.rollout.llm_server import LLMServerManager

from ... import store
from ...config.derived import engine_gpus
from ...config.options import AsyncDAPOConfig
from ...rollout.coordinator import RoundEvent
from ...rollout.manager import RoundRecord
from ...runtime.logs import log_phase
from ...training.engine_manager import EngineManager
from ...training.replay_buffer import RoundReplayBuffer
from ...training.run import Parts
from ...training.trainer import AsyncDAPOTrainer
from .balancer import RollingLoadBalancer, RollingStats
from .engines import SeparateEngines, SeparateReplica
from .manager import RollingManager
from .rolling_round import RollingPool, RollingSpec
from .weights import SeparateActorRolloutRefWorker


class RollingReplayBuffer(RoundReplayBuffer):
    """The buffer of a round that goes on while the trainer trains its batches: `open_round` does nothing meanwhile.

    It is stopped for a checkpoint, which holds what was interrupted, and for a validation; the next step opens another.
    """

    manager: RollingManager
    pool: RollingPool
    _pool_class = RollingPool
    _step = 0  # whose batch is collected; 0 = no round is open
    _opened_at = 0  # step
    _before: RoundRecord | None = None  # of a round that was stopped before it had the step's batch

    def open_round(self, step: int) -> None:
        if self._step:
            return
        self.manager.open_engines(None if self._has_opened else self._concurrency_state)
        self._has_opened = True
        self._opened_at = step
        counted = self._num_gen_batches
        groups = self._top_up(step)
        if self._before is not None:  # the step's first batch has been counted
            self._num_gen_batches = counted
        self.manager.open_round(self._spec(step), groups)
        self._step = step

    def end_round(self) -> None:
        """Stop the round, if one is open: what was interrupted comes back into the pool."""
        if not self._step:
            return
        self.manager.ask("stop_round")
        event = self.manager.next_event()
        assert event is RoundEvent.STOPPED, f"{event} after the stop"
        record = self.manager.close_round()
        self._note_ended(record)
        summary = self.pool.take_back(record.summary, record.workers.unfinished)
        self._before = self._with_what_was_before(replace(record, summary=summary))
        self._concurrency_state = record.balancer.concurrency_state
        self._step = 0

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        if partition_id == store.VAL:
            return self._sample_validation()
        record = None
        while record is None:
            while self.manager.next_event() is RoundEvent.NEEDS_PROMPTS:
                self._refill(global_steps)
            record = self.manager.hand_over()
        self._note_ended(record)
        record = self._with_what_was_before(replace(record, summary=self.pool.hand_over(record.summary)))
        self._before = None
        assert isinstance(record.balancer, RollingStats)
        batch, metrics = self._batch(record, global_steps)
        self._go_on(global_steps + 1)
        return batch, metrics | record.balancer.metrics

    def _go_on(self, step: int) -> None:
        """Collect the next step's batch."""
        self._step = step
        self._num_gen_batches = {}
        self.manager.add_groups(self._top_up(step, goes_on=True))
        self.manager.ask("resize", self._spec(step))

    def _with_what_was_before(self, record: RoundRecord) -> RoundRecord:
        return record if self._before is None else self._before + record

    def _spec(self, step: int) -> RollingSpec:
        return self._make_spec(
            RollingSpec,
            round_id=f"from-step-{self._opened_at}",
            step=step,
            max_staleness=self.options.max_staleness,
            carried=self.pool.carried_versions,
            most_begun=self.mix.over_sampling.valid_to_hold,
        )


class SeparateTrainer(AsyncDAPOTrainer):
    """One step: wait for B valid groups, train on them, and leave the weights for the engines."""

    _enable_hybrid_replicas = False  # verl's: no engine on the training GPUs
    _engines: SeparateEngines
    _engines_class = SeparateEngines
    _worker_class = SeparateActorRolloutRefWorker
    _buffer_class = RollingReplayBuffer

    def _manage_engines(self, verls: CheckpointEngineManager) -> EngineManager:
        log_phase("engines start on GPUs of their own")
        self.llm_server_manager = LLMServerManager.create(config=self.config)
        return super()._manage_engines(verls)

    def _client_options(self) -> dict[str, bool]:
        return {"rolling": True, "one_version": self.options.is_consistent}

    def on_step_end(self) -> None:
        with self._updating_weights():
            self.checkpoint_manager.update_weights(self.global_steps)

    def on_validate_begin(self) -> None:
        self.replay_buffer.end_round()
        self._engines.await_newest_weights()
        self.replay_buffer.manager.open_engines()
        super().on_validate_begin()

    def _save_checkpoint(self) -> None:
        self.replay_buffer.end_round()
        super()._save_checkpoint()

    def _get_n_gpus_for_throughput(self) -> int:
        gpus: int = super()._get_n_gpus_for_throughput() + engine_gpus(self.config)
        return gpus


def rolling_update(options: AsyncDAPOConfig) -> dict[str, Any]:
    """What `RollingLoadBalancer` needs beside `router_options`. An engine that is behind by more than
    `max_staleness` takes no further requests, with `consistent` by half of that: what it has would grow too old.
    """
    drains, most = options.is_consistent, options.max_staleness
    return {
        "drains": drains,
        "max_lag": most // 2 if drains and most is not None else most,
        "pause_mode": "hold" if options.has_old_kv else "abort",
    }


def wire(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Requests that stay in their engines while these get new weights: each token is stamped by itself, as a chunk of
    several may span the update.
    """
    if options.has_old_kv:
        with open_dict(config):
            config.actor_rollout_ref.rollout.engine_kwargs.vllm.stream_interval = 1


PARTS = Parts(
    trainer=SeparateTrainer,
    manager=RollingManager,
    balancer=RollingLoadBalancer,
    replica=SeparateReplica,
    balancer_options=lambda options: {"rolling": rolling_update(options)},
)
