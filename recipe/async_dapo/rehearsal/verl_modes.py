"""verl's own trainer modes, rehearsed."""

import logging
from typing import Any

from omegaconf import DictConfig
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.trainer.ppo.v1 import trainer_separate_async
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.ray_utils import auto_await
from verl.workers.rollout.llm_server import LLMServerClient

from .client import ContinuingClient
from .emulation import NO_TRANSFER
from .options import SEPARATE, gpus_of
from .training import EmulatedTraining, EmulatedWeightSync


class RehearsedSync(EmulatedTraining, PPOTrainerSync):
    """verl's mode `sync`."""


class RehearsedColocateAsync(EmulatedTraining, PPOTrainerColocateAsync):
    """verl's mode `colocate_async`."""

    def get_llm_client(self) -> LLMServerClient:
        return self.llm_server_manager.get_client(client_cls=ContinuingClient, speedup=self._rehearsal.speedup)


@CheckpointEngineRegistry.register(NO_TRANSFER)
class NoTransfer(CheckpointEngine):
    """What verl finds where it wants the engine that carries weights from GPU to GPU; none is ever made."""


class EmulatedGlobalSync(EmulatedWeightSync):
    """All engines stop for the new weights at once, and go on with what they were at."""

    @auto_await
    async def update_weights(self, global_steps: int | None = None) -> dict[str, Any]:
        await self.abort_replicas()
        await self.install_weights(global_steps)
        await self.resume_generation_replicas()
        return {}


class RehearsedSeparateAsync(EmulatedTraining, PPOTrainerSeparateAsync):
    """verl's mode `separate_async`: the trainer and the engines on GPUs of their own, none lent to the other."""

    def __init__(self, config: DictConfig) -> None:
        # verl says at this level, with an argument that loggers refuse, that no engine is on the trainer's GPUs.
        logging.getLogger(trainer_separate_async.__name__).setLevel(logging.WARNING)
        super().__init__(config)
        share = gpus_of(config)[0] / self._scenario.num_gpus
        parts = config.trainer.v1.separate_async.parameter_sync_step
        self._training_cost = self._training_cost.at(share, parts=parts)

    def _start_engines(self) -> None:
        """verl itself has started them, beside a manager of the colocated ones that it does without."""
        self.standalone_checkpoint_manager = self._weight_sync(EmulatedGlobalSync, self.standalone_server_manager)

    def get_llm_client(self) -> LLMServerClient:
        return self.standalone_server_manager.get_client(client_cls=ContinuingClient, speedup=self._rehearsal.speedup)


VERL_MODES: dict[str, type[EmulatedTraining]] = {
    "sync": RehearsedSync,
    "colocate_async": RehearsedColocateAsync,
    SEPARATE: RehearsedSeparateAsync,
}
