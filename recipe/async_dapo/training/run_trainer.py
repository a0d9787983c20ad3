"""The trainer of a run, but for its steps: how it starts, validates, goes on from a checkpoint, saves one, and ends.

`trainer.py` has the steps.
"""

import logging
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig
from verl.checkpoint_engine import CheckpointEngineManager
from verl.experimental.agent_loop import AgentLoopManager
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.tracking import Tracking
from verl.workers.rollout.llm_server import LLMServerClient

from ..config.extensions import refused_parameters
from ..config.options import AsyncDAPOConfig
from ..config.values import ConfigError, RolloutStrategy
from ..core.trajectory import PromptGroup
from ..engines.client import AsyncDAPOLLMClient
from ..record import keys
from ..record.checkpoint_folder import STEP_FOLDER
from ..record.trained_model import TrainedModel
from ..rollout.manager import AsyncDAPOAgentLoopManager
from ..runtime.actor_watch import watched
from ..runtime.logs import log_phase
from ..weights.sender import AsyncDAPOActorRolloutRefWorker
from .engine_manager import EngineManager
from .passes import passes_of
from .replay_buffer import RoundReplayBuffer
from .run_checkpoints import KeptCheckpoints, prompts_in_words, restore_run, save_run
from .source import next_groups
from .step_updates import step_updates
from .users_data import DataOfUsers
from .validation import Validation

logger = logging.getLogger(__name__)

_POLICY_ROLES = {Role.ActorRollout, Role.ActorRolloutRef, Role.Actor, Role.RefPolicy}


class RunTrainer(PPOTrainer):
    """verl's trainer with this recipe's data, engines, replay buffer, validation and checkpoints."""

    train_dataset, val_dataset = DataOfUsers(), DataOfUsers()
    checkpoint_manager: CheckpointEngineManager
    checkpoint_callback: CheckpointCallback
    _engines_class: type[EngineManager] = EngineManager
    _worker_class: type[AsyncDAPOActorRolloutRefWorker] = AsyncDAPOActorRolloutRefWorker
    _buffer_class: type[RoundReplayBuffer] = RoundReplayBuffer
    first_step = 1  # of this life
    _on_complete = CheckpointCallback()  # the user's

    def __init__(self, config: DictConfig) -> None:
        self.options = AsyncDAPOConfig.from_hydra(config)
        self._checkpoints = KeptCheckpoints.taking_over_from_verl(config)
        super().__init__(config)
        # verl would call it before the checkpoint is complete: a copy that it makes could not be resumed from.
        self._on_complete, self.checkpoint_callback = self.checkpoint_callback, CheckpointCallback()

    def _init_dataloader(self) -> None:
        """Steps end a run: verl's loop would also end after `total_epochs`, without its last checkpoint and validation,
        where `total_training_steps` asks for more.
        """
        data = self.config.data
        if data.val_batch_size:  # of a part of the validation that fails whole verl could make no batch
            logger.warning("data.val_batch_size=%d is ignored: a validation is one batch", data.val_batch_size)
            data.val_batch_size = None
        super()._init_dataloader()
        if self.steps_per_epoch == 0:
            available, batch = len(self.train_dataset), self.config.data.train_batch_size
            remedy = f"there are {available} prompts to train on, fewer than one batch; lower it, or add data"
            raise ConfigError("data.train_batch_size", batch, remedy)
        trainer, epochs = self.config.trainer, -(-self.total_training_steps // self.steps_per_epoch)
        trainer.total_epochs = max(trainer.total_epochs, epochs)
        self.replay_buffer.source.begin(self)

    def _init_resource_pool_mgr(self) -> None:
        prompts = f"{len(self.train_dataset):,} prompts, {len(self.val_dataset):,} to validate"
        log_phase(f"data loaded: {prompts}; training workers load the model")
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping.keys() & _POLICY_ROLES:
            self.role_worker_mapping[role] = ray.remote(self._worker_class)

    def _setup(self) -> None:
        super()._setup()
        self.checkpoint_manager = self._engines = self._manage_engines(self.checkpoint_manager)
        for observer in self.replay_buffer.observers.values():
            observer.engines_started(self._engines)
        self._step_updates = step_updates(self.config, has_critic=self.use_critic)
        passes_class = passes_of(self.options.extensions)
        self._passes = passes_class(self.config, self.options, self.actor_rollout_wg)
        log_phase(self._passes.in_words)

    def _manage_engines(self, verls: CheckpointEngineManager) -> EngineManager:
        return self._engines_class(verls.config, verls.actor_wg, manager=self.llm_server_manager, options=self.options)

    @property
    def logger(self) -> Tracking:
        return self._tracking

    @logger.setter
    def logger(self, tracking: Tracking) -> None:
        """verl's `fit` makes its loggers itself, and assigns them before it logs anything."""
        self._extend(tracking)
        self._tracking = tracking

    def _extend(self, tracking: Tracking) -> None:
        for name, observer in self.replay_buffer.observers.items():
            observer.loggers_made(tracking.logger)
            tracking.logger[f"async_dapo_{name}"] = observer

    def _build_replay_buffer(self) -> RoundReplayBuffer:
        return self._buffer_class(self.options, self._draw)

    def get_llm_client(self) -> LLMServerClient:
        is_partial = self.options.rollout_strategy is RolloutStrategy.PARTIAL and self.options.keeps_tokens
        return self.llm_server_manager.get_client(
            client_cls=AsyncDAPOLLMClient,
            cleanup_timeout_s=self.options.stop_timeout_s,
            continues=is_partial or self.options.host_kv_gib is not None,
            has_old_kv=self.options.host_kv_gib is not None,
            refused=refused_parameters(self.options.extensions),
            **self._client_options(),
        )

    def _client_options(self) -> dict[str, bool]:
        """Of `AsyncDAPOLLMClient`, where engines are not as it takes them to be."""
        return {}

    def fit(self, agent_loop_manager: AgentLoopManager) -> None:
        assert isinstance(agent_loop_manager, AsyncDAPOAgentLoopManager)
        self.replay_buffer.attach(agent_loop_manager)
        for observer in self.replay_buffer.observers.values():
            observer.training_begins(self)
        watching = watched(agent_loop_manager.named_actors)  # they are not called while the trainer trains
        with watching, self._engines.naming_lost_engines():
            super().fit(agent_loop_manager)
            self.replay_buffer.end_round()
            agent_loop_manager.end()

    def on_init_end(self) -> None:
        self._passes.begin()
        log_phase("first weights to the engines")
        self.checkpoint_manager.update_weights(self.global_steps)

    def _begin_phase(self, name: str | None) -> None:
        for observer in self.replay_buffer.observers.values():
            observer.begin_phase(name)

    def on_train_begin(self) -> None:
        self.first_step = self.global_steps
        log_phase(f"training, step {self.global_steps} of {self.total_training_steps}")

    def on_validate_begin(self) -> None:
        log_phase("validation begins")
        self._begin_phase("validation")

    def on_validate_end(self) -> None:
        self._begin_phase(None)

    @cached_property
    def _validation(self) -> Validation:
        return Validation()

    def _maybe_log_val_generations(self, inputs: list[str], outputs: list[str], scores: list[float]) -> None:
        """verl gives the answers here, and their prompts' ids and data sources to what follows."""
        super()._maybe_log_val_generations(inputs, outputs, scores)
        self._validation.answered = inputs, outputs, scores

    def _val_metrics_update(
        self, data_sources: list[Any], sample_uids: list[str], rewards: dict[str, list[Any]], *args: Any, **kwargs: Any
    ) -> dict[str, float]:
        """A failed answer is wrong for the mean of `acc` only; other means leave its prompt out. So count them."""
        answers = self._validation.take_answers(sample_uids, data_sources)
        for observer in self.replay_buffer.observers.values():
            observer.validated(answers)
        averaged = self._validation.averaged(rewards)
        metrics = super()._val_metrics_update(data_sources, sample_uids, averaged, *args, **kwargs)
        failed, self.replay_buffer.left_out = self.replay_buffer.left_out, 0
        return metrics | {keys.VALIDATION_FAILED: failed}

    def _draw(self, count: int) -> list[PromptGroup]:
        return next_groups(self, count)

    def _reissue_inflight_prompts(self, partition_id: str = "train") -> int:
        """Nothing is in flight between rounds: what a checkpoint held is in the pool."""
        return 0

    def _save_checkpoint(self) -> None:
        """The checkpoint before stays until this one is complete; then those beyond the number to keep go, whole."""
        folder = Path(self.config.trainer.default_local_dir) / f"{STEP_FOLDER}{self.global_steps}"
        save_run(
            folder,
            self.replay_buffer,
            self.config,
            prompts=self._prompts_in_words(),
            model=self._model,
            run=self._checkpoints.run,
            save_models=super()._save_checkpoint,
        )
        self._on_complete.on_save(
            trainer=self, global_step=self.global_steps, checkpoint_dir=str(folder), async_save=False
        )
        self._checkpoints.saved(folder)

    def _load_checkpoint(self) -> None:
        trainer = self.config.trainer
        is_own = trainer.resume_mode == "auto"
        if is_own and trainer.resume_from_path:  # the start-up check has found the newest one damaged
            trainer.resume_mode = "resume_path"
        super()._load_checkpoint()
        if self.global_steps == 0:
            return
        prompts, step = self._prompts_in_words(), self.global_steps
        folder = restore_run(self.replay_buffer, self.config, step=step, prompts=prompts, is_newest=is_own)
        if is_own:  # one that was named stays, and those beside it: what goes on from it is a run of its own
            self._checkpoints.resumed(folder)

    @cached_property
    def _model(self) -> TrainedModel:
        return TrainedModel.of(self.config)

    def _prompts_in_words(self) -> str:
        return prompts_in_words(self.train_dataset, self.config.data.prompt_key)
