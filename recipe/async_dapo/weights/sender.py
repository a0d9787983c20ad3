"""verl's training worker, whose adapter sends weights to its own run's engines."""

from collections.abc import Mapping
from typing import Any

import ray
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from ..config.extensions import declared, load
from ..runtime.garbage import collect_cycles_as_usual
from .adapter import WeightSender
from .stream import CUSTOM_OPTIONS, WeightFilter, unchanged


class AsyncDAPOActorRolloutRefWorker(ActorRolloutRefWorker):
    """verl's training worker, with this recipe's sender."""

    rollout: Any
    as_sent: WeightFilter = staticmethod(unchanged)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        self.actor_worker_cls = self.ref_worker_cls = policy_worker(self.config.rollout.custom[CUSTOM_OPTIONS])
        super().init_model()
        verls = self.rollout
        if verls is not None:  # engines share these GPUs
            self.rollout = WeightSender(verls.config, verls.model_config, verls.device_mesh, verls.replica_rank)
        collect_cycles_as_usual()

    def send_through(self, as_sent: WeightFilter) -> None:
        """Weights go to the engines as this gives them. All ranks gather each tensor together, and need the same."""
        self.as_sent = as_sent
        if self.rollout is not None:
            self.rollout.as_sent = as_sent

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def call_extension(self, name: str, place: str, *args: Any) -> Any:
        """Call an extension's function, named "module.function", with each rank's worker."""
        return load(name, place)(self, *args)


def on_ranks(workers: Any, limit_s: float, name: str, place: str, *args: Any) -> list[Any]:
    """What an extension's function returns in each training worker: `call_extension`, and the wait for it.

    Raises:
        GetTimeoutError: when a worker has not answered within the limit [s].
    """
    answers: list[Any] = ray.get(workers.call_extension(name, place, *args), timeout=limit_s)
    return answers


def policy_worker(told: Mapping[str, Any]) -> type[TrainingWorker]:
    """verl's worker of one policy, with what the run's extensions add to it."""
    own = [load(name, place) for name in told["extensions"] if (place := declared()[name].training_worker)]
    return type("PolicyWorker", (*own, TrainingWorker), {})
