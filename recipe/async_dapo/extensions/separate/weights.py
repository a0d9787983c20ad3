"""verl's workers around weights in Ray's object store: one leaves them there, one takes them to an engine."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from ray import ObjectRef
from ray.actor import ActorHandle
from verl.checkpoint_engine.base import CheckpointEngineWorker
from verl.single_controller.base.decorator import Dispatch, register

from ...weights.adapter import WeightSender
from ...weights.sender import AsyncDAPOActorRolloutRefWorker
from ...weights.stream import run_name, sockets_folder, with_proof
from .relay import leave_in_store, take_from_store


class SeparateActorRolloutRefWorker(AsyncDAPOActorRolloutRefWorker):
    """A training worker that leaves weights for engines on GPUs of their own."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def leave_weights(self, version: int) -> list[ObjectRef]:
        """Rank 0 returns where the weights are."""
        engine = self.actor.engine
        weights, _ = engine.get_per_tensor_param()
        weights = weights if self.wire is None else self.wire.cast(weights)
        buckets: list[ObjectRef] = []
        if torch.distributed.get_rank() == 0:
            run = run_name(sockets_folder())
            buckets = await leave_in_store(with_proof(weights, run=run, version=version))
        else:  # every rank gathers every tensor together with the others
            for _ in weights:
                pass
        if engine.is_param_offload_enabled:
            engine.to("cpu", model=True, optimizer=False, grad=False)
        return buckets


class WeightTaker(CheckpointEngineWorker):
    """verl's worker beside one GPU of an engine that has GPUs of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        verls: Any = self.server_adapter
        self._sender = WeightSender(verls.config, verls.model_config, None, verls.replica_rank)
        self._note_progress: Callable[[], None] = lambda: None

    async def tell_progress_to(self, balancer: ActorHandle, server_id: str) -> None:
        """The load balancer is told of each bucket of weights that the engine has taken."""
        self._note_progress = lambda: balancer.note_progress.remote(server_id)

    async def take_weights(self, version: int, buckets: Sequence[ObjectRef]) -> None:
        """Bring weights that the trainer has left to the engine, which has stopped."""
        await self._sender.pass_on(take_from_store(buckets, self._note_progress), version=version)
