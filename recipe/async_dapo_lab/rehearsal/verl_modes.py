"""verl's own trainer modes, rehearsed."""

import asyncio
import logging
from typing import Any

from omegaconf import DictConfig
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.trainer.ppo.v1 import trainer_separate_async
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import normalize_token_ids
from verl.utils.ray_utils import auto_await
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from .emulation import NO_TRANSFER
from .options import SEPARATE, gpus_of
from .training import EmulatedTraining, EmulatedWeightSync

PAUSE_S = 1.0  # before an interrupted request is sent again, in `FullyAsyncLLMServerClient` [virtual s]


class ContinuingClient(LLMServerClient):
    """What verl's `FullyAsyncLLMServerClient` does for responses of text; it has its pause in the middle of a loop.

    Args:
        speedup: virtual seconds in a real one.
    """

    def __init__(self, *args: Any, speedup: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pause_s = PAUSE_S / speedup

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        prompt_ids = normalize_token_ids(prompt_ids)
        budget_tok = sampling_params.get("max_tokens", self.config.actor_rollout_ref.rollout.response_length)
        whole = TokenOutput(token_ids=[], log_probs=[], num_preempted=0)
        versions: list[int] = []
        while True:
            part = await super().generate(
                request_id,
                prompt_ids=prompt_ids + whole.token_ids,
                sampling_params=sampling_params | {"max_tokens": budget_tok - len(whole.token_ids)},
                **kwargs,
            )
            whole.token_ids += part.token_ids
            whole.log_probs += part.log_probs or []
            versions.append(part.extra_fields["global_steps"])
            whole.stop_reason = part.stop_reason
            if len(whole.token_ids) >= budget_tok or part.stop_reason != "aborted":
                break
            await asyncio.sleep(self._pause_s)
        whole.extra_fields |= {
            "global_steps": versions[-1],
            "min_global_steps": versions[0],
            "max_global_steps": versions[-1],
            "num_cached_tokens": None,
        }
        return whole


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
