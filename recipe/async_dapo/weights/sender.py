"""verl's training worker, whose adapter sends weights to its own run's engines."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from ..config.extensions import declared, load
from ..runtime.garbage import collect_cycles_as_usual
from .adapter import WeightSender
from .stream import CUSTOM_OPTIONS
from .wire import EngineTypes, WireType


class AsyncDAPOActorRolloutRefWorker(ActorRolloutRefWorker):
    """verl's training worker, with this recipe's sender."""

    rollout: Any
    wire: WireType | None = None  # what weights are sent as; None: as they are

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        self.actor_worker_cls = self.ref_worker_cls = policy_worker(self.config.rollout.custom[CUSTOM_OPTIONS])
        super().init_model()
        verls = self.rollout
        if verls is not None:  # engines share these GPUs
            self.rollout = WeightSender(verls.config, verls.model_config, verls.device_mesh, verls.replica_rank)
        collect_cycles_as_usual()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def send_as(self, engines: Sequence[EngineTypes]) -> None:
        """All ranks decide alike: they gather each tensor together."""
        module = self.actor.engine.module
        named = [*module.named_parameters(), *module.named_buffers()] if isinstance(module, torch.nn.Module) else []
        self.wire = WireType.agreed(engines, [name for name, _ in named])
        if self.rollout is not None:
            self.rollout.wire = self.wire

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def call_extension(self, name: str, place: str, *args: Any) -> Any:
        """Call an extension's function, named "module.function", with each rank's worker."""
        return load(name, place)(self, *args)


def policy_worker(told: Mapping[str, Any]) -> type[TrainingWorker]:
    """verl's worker of one policy, with what the run's extensions add to it."""
    own = [load(name, place) for name in told["extensions"] if (place := declared()[name].training_worker)]
    return type("PolicyWorker", (*own, TrainingWorker), {})
