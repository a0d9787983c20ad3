"""The trainer with engines on GPUs of their own: they generate while it trains, and it never waits for one of them.

    trainer    wait for B valid groups -- train -- leave the weights in the object store -- wait for B valid groups --
    engines    generate ----------- one at a time: take the weights ----------- generate --------------------------

Only a checkpoint and a validation stop the engines: the first holds what they have generated, the second asks all of
them under the newest weights.
"""

from verl.checkpoint_engine import CheckpointEngineManager
from verl.workers.rollout.llm_server import LLMServerManager

from ..logs import log_phase
from .rolling_buffer import RollingReplayBuffer
from .separate_engines import SeparateEngines
from .trainer import AsyncDAPOTrainer


class SeparateTrainer(AsyncDAPOTrainer):
    """One step: wait for B valid groups, train on them, and leave the weights for the engines."""

    _enable_hybrid_replicas = False  # verl's: no engine on the training GPUs
    _engines: SeparateEngines
    _engines_class: type[SeparateEngines] = SeparateEngines

    def _build_replay_buffer(self) -> RollingReplayBuffer:
        return RollingReplayBuffer(self.options, self._draw)

    def _manage_engines(self, verls: CheckpointEngineManager) -> SeparateEngines:
        log_phase("engines start on GPUs of their own")
        self.llm_server_manager = LLMServerManager.create(config=self.config)
        return self._engines_class(verls.config, verls.actor_wg, manager=self.llm_server_manager, options=self.options)

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
        rollout = self.config.actor_rollout_ref.rollout
        gpus: int = super()._get_n_gpus_for_throughput() + rollout.nnodes * rollout.n_gpus_per_node
        return gpus
