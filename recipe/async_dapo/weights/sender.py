"""The end of weights that belongs to verl's workers: a training worker whose engine adapter sends to its own run's
engines, and which keeps earlier versions for `async_dapo.importance_sampling=mixture`.
"""

from collections.abc import AsyncIterator
from typing import Any

from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker

from ..runtime.garbage import collect_cycles_as_usual
from .adapter import BoundedServerAdapter
from .snapshots import SnapshotRoom, WeightSnapshots
from .stream import NamedTensor, private_handle, run_name, sockets_folder, with_proof


class WeightSender(BoundedServerAdapter):
    """Meets the engine at its run's own socket, proves what it sends, and tells the engine which proof to expect.

    The expectation goes over Ray to the engine of this run, the proof through the socket with the weights: an engine
    that listens to another run raises `WeightsMismatch`, here as well.
    """

    zmq_handle: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        folder = sockets_folder()
        self.zmq_handle = private_handle(self.zmq_handle, folder)
        self._run = run_name(folder)

    async def update_weights(self, weights: Any, global_steps: int | None = None, **kwargs: Any) -> None:
        await self.pass_on(with_proof(weights, run=self._run, version=global_steps), version=global_steps, **kwargs)

    async def pass_on(self, weights: AsyncIterator[NamedTensor], *, version: int | None, **kwargs: Any) -> None:
        """Send what has its proof already."""
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
