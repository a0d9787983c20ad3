"""verl's workers around weights in Ray's object store: one leaves them there, one takes them to an engine."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from ray import ObjectRef
from ray.actor import ActorHandle
from verl.checkpoint_engine.base import CheckpointEngineWorker
from verl.single_controller.base.decorator import Dispatch, register

from ...config.values import ConfigError
from ...weights.adapter import WeightSender
from ...weights.sender import AsyncDAPOActorRolloutRefWorker
from ...weights.stream import run_name, sockets_folder, with_proof
from .relay import leave_in_store, take_from_store

CONTEXT_BYTES = 0.5e9  # CUDA's, of the process that brings weights
GRAPH_BYTES = 2e9  # CUDA graphs, which vLLM's second model runner does not count
BUCKET_MB = 256  # as large as those that arrive


class SeparateActorRolloutRefWorker(AsyncDAPOActorRolloutRefWorker):
    """A training worker that leaves weights for engines on GPUs of their own."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def leave_weights(self, version: int) -> list[ObjectRef]:
        """Rank 0 returns where the weights are."""
        engine = self.actor.engine
        weights, _ = engine.get_per_tensor_param()
        weights = self.as_sent(weights)
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


def check_room(rollout: Any, hf_config: Any, *, bucket_mb: int, memory_bytes: float) -> None:
    """See that a GPU has room for weights that arrive, beside an engine's share of it, `gpu_memory_utilization`. The KV
    cache is mapped then: what has no room would fail at the first update, minutes after the start.

    Args:
        bucket_mb: of a transfer [MiB]. A weight that is larger travels whole, in memory of its own.

    Raises:
        ConfigError: if there is no room.
    """
    text, value_bytes = hf_config.get_text_config(), 4 if rollout.dtype == "float32" else 2
    embedding_bytes = value_bytes * text.vocab_size * text.hidden_size
    bucket_bytes = bucket_mb * 2**20
    beside_bytes = CONTEXT_BYTES + bucket_bytes + (embedding_bytes if embedding_bytes > bucket_bytes else 0)
    if not rollout.enforce_eager:
        beside_bytes += GRAPH_BYTES
    most, asked = 1 - beside_bytes / memory_bytes, rollout.gpu_memory_utilization
    if asked > most:
        raise ConfigError(
            "actor_rollout_ref.rollout.gpu_memory_utilization",
            asked,
            f"weights that arrive, and CUDA graphs, take {beside_bytes / 1e9:.1f} GB of a GPU of "
            f"{memory_bytes / 1e9:.0f} GB beside an engine; set at most {most - 0.005:.2f}",
        )


class WeightTaker(CheckpointEngineWorker):
    """verl's worker beside one GPU of an engine that has GPUs of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        verls: Any = self.server_adapter
        self._sender = WeightSender(verls.config, verls.model_config, None, verls.replica_rank)
        self._note_progress: Callable[[], None] = lambda: None
        if not self._sender.use_shm:  # through shared memory no weight may be larger than a bucket
            self._sender.bucket_mb = min(self._sender.bucket_mb, BUCKET_MB)
        if torch.cuda.is_available():
            check_room(
                self.rollout_config,
                self.model_config.hf_config,
                bucket_mb=self._sender.bucket_mb,
                memory_bytes=torch.cuda.get_device_properties(0).total_memory,
            )

    async def report_progress_to(self, balancer: ActorHandle, server_id: str) -> None:
        """The load balancer is told of each bucket of weights that the engine has taken."""
        self._note_progress = lambda: balancer.note_progress.remote(server_id)

    async def take_weights(self, version: int, buckets: Sequence[ObjectRef]) -> None:
        """Bring weights that the trainer has left to the engine, which has stopped."""
        await self._sender.pass_on(take_from_store(buckets, self._note_progress), version=version)
