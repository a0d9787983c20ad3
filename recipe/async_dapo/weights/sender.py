"""The ends of weights that belong to verl's workers: a training worker whose engine adapter sends to its own run's
engines, or which leaves weights for engines on GPUs of their own, and which keeps earlier versions for
`async_dapo.importance_sampling=balance`; and the worker beside such an engine, which takes them.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import torch
from ray import ObjectRef
from verl.checkpoint_engine.base import CheckpointEngineWorker
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker

from ..garbage import collect_cycles_as_usual
from .adapter import BoundedServerAdapter
from .relay import NamedTensor, leave_in_store, take_from_store
from .snapshots import SnapshotRoom, WeightSnapshots
from .stream import private_handle, run_name, sockets_folder, stamped


class WeightSender(BoundedServerAdapter):
    """Meets the engine at its run's own socket, stamps what it sends, and tells the engine which stamp to expect.

    The expectation goes over Ray to the engine of this run, the stamp through the socket with the weights: an engine
    that listens to another run raises `WeightsMismatch`, here as well.
    """

    zmq_handle: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        folder = sockets_folder()
        self.zmq_handle = private_handle(self.zmq_handle, folder)
        self._run = run_name(folder)

    async def update_weights(self, weights: Any, global_steps: int | None = None, **kwargs: Any) -> None:
        await self.pass_on(stamped(weights, run=self._run, version=global_steps), version=global_steps, **kwargs)

    async def pass_on(self, weights: AsyncIterator[NamedTensor], *, version: int | None, **kwargs: Any) -> None:
        """Send what is stamped already."""
        await super().update_weights(
            weights, global_steps=version, expected_run=self._run, expected_version=version, **kwargs
        )


class AsyncDAPOActorRolloutRefWorker(ActorRolloutRefWorker):
    """verl's training worker, with this recipe's sender and snapshots."""

    rollout: Any
    snapshots: WeightSnapshots

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        super().init_model()
        verls = self.rollout
        if verls is not None:  # engines share these GPUs
            self.rollout = WeightSender(verls.config, verls.model_config, verls.device_mesh, verls.replica_rank)
        collect_cycles_as_usual()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def leave_weights(self, version: int) -> list[ObjectRef]:
        """For engines on GPUs of their own. Rank 0 returns where the weights are."""
        engine = self.actor.engine
        weights, _ = engine.get_per_tensor_param()
        buckets: list[ObjectRef] = []
        if torch.distributed.get_rank() == 0:
            run = run_name(sockets_folder())
            buckets = await leave_in_store(stamped(weights, run=run, version=version))
        else:  # every rank gathers every tensor together with the others
            for _ in weights:
                pass
        if engine.is_param_offload_enabled:
            engine.to("cpu", model=True, optimizer=False, grad=False)
        return buckets

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def begin_snapshots(self) -> SnapshotRoom:
        """Snapshots have the type that the model computes in: they lose nothing."""
        engine = self.actor.engine
        self.snapshots = WeightSnapshots(engine.module, engine._autocast_dtype)
        return self.snapshots.room(awaits_optimizer=engine.is_optimizer_offload_enabled and not engine.optimizer.state)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def keep_weights(self, version: int, oldest: int) -> int:
        """Returns the bytes of all snapshots of this rank."""
        self.snapshots.keep(version, oldest=oldest)
        return self.snapshots.kept_bytes

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_weights(self, version: int) -> None:
        self.snapshots.load(version)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_newest_weights(self) -> None:
        self.snapshots.load_newest()


class WeightTaker(CheckpointEngineWorker):
    """verl's worker beside one GPU of an engine that has GPUs of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        verls: Any = self.server_adapter
        self._sender = WeightSender(verls.config, verls.model_config, None, verls.replica_rank)

    async def take_weights(self, version: int, buckets: Sequence[ObjectRef]) -> None:
        """Bring weights that the trainer has left to the engine, which has stopped."""
        await self._sender.pass_on(take_from_store(buckets), version=version)
