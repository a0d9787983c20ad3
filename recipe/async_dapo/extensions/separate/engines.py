"""Engines on GPUs of their own, as the trainer has them: it leaves weights for them, and starts another one where one
is lost and its GPUs, or those of a new node, are free.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import RayError
from ray.util import remove_placement_group
from verl.single_controller.ray import RayClassWithInitArgs
from verl.utils.device import get_resource_name
from verl.workers.rollout.llm_server import LLMServerManager

from ...engines.replica import AsyncDAPOReplica
from ...training.engine_manager import EngineManager
from .holding_actor import HoldingServerActor
from .weights import WeightTaker

logger = logging.getLogger(__name__)

MOST_FAILED_STARTS = 3


class SeparateReplica(AsyncDAPOReplica):
    """An engine on GPUs of its own, with the workers that bring it weights."""

    actor_class = HoldingServerActor

    def get_ray_class_with_init_args(self) -> RayClassWithInitArgs:
        """What stands beside the engine."""
        if self.is_reward_model or self.is_teacher_model:
            return super().get_ray_class_with_init_args()
        return RayClassWithInitArgs(
            cls=ray.remote(WeightTaker),
            rollout_config=self.config,
            model_config=self.model_config,
            replica_rank=self.replica_rank,
        )


class Replacements:
    """Starts engines in the place of lost ones, one at a time, while the trainer goes on.

    Args:
        manager: verl's, which has launched those that were there first.
    """

    def __init__(self, manager: LLMServerManager) -> None:
        self._manager = manager
        self._next_rank = len(manager.get_replicas())  # names are not used again
        self._missing = self._failed = 0
        self._start: threading.Thread | None = None
        self._started: list[AsyncDAPOReplica] = []

    def note_lost(self, replica: AsyncDAPOReplica) -> None:
        """Whatever is left of it goes, so that its GPUs are free."""
        self._missing += 1
        for actor in (*replica.servers, *replica.workers):
            ray.kill(actor)
        pool = replica.resource_pool
        for group in (pool.pgs if pool else None) or ():
            remove_placement_group(group)

    def take_started(self) -> list[AsyncDAPOReplica]:
        """Those that have started since this was asked last."""
        started, self._started = self._started, []
        return started

    def begin(self) -> None:
        """Start another one, if one is missing and there are GPUs for it."""
        is_busy = self._start is not None and self._start.is_alive()
        if not self._missing or is_busy or self._failed >= MOST_FAILED_STARTS:
            return
        replica: AsyncDAPOReplica = self._manager.rollout_replica_class(
            replica_rank=self._next_rank,
            config=self._manager.rollout_config,
            model_config=self._manager.model_config,
            gpus_per_node=self._manager.rollout_config.n_gpus_per_node,
        )
        free_gpus = ray.available_resources().get(get_resource_name(), 0.0)
        if free_gpus < replica.world_size:
            return
        self._missing -= 1
        self._next_rank += 1
        self._start = threading.Thread(target=self._launch, args=[replica], name="start-engine", daemon=True)
        self._start.start()

    def _launch(self, replica: AsyncDAPOReplica) -> None:
        try:
            asyncio.run(replica.init_standalone())
        except Exception:  # whatever vLLM, verl or Ray say: the run goes on with the others
            self._failed += 1
            self.note_lost(replica)
            logger.exception("an engine could not be started in the place of a lost one (%d times)", self._failed)
            return
        self._started.append(replica)


class SeparateEngines(EngineManager):
    """A manager of engines that have GPUs of their own: it leaves weights for them, and has lost ones replaced."""

    def __init__(self, *args: Any, manager: LLMServerManager, **kwargs: Any) -> None:
        super().__init__(*args, manager=manager, **kwargs)
        self._replacements = Replacements(manager)
        self._have_enrolled = False

    def sleep_replicas(self) -> None:
        """They never do."""

    def update_weights(self, global_steps: int | None = None) -> None:
        """Leave the trainer's weights where engines can take them. Waits for the engines only the first time.

        Raises:
            TimeoutError: when that has taken longer than `AsyncDAPOConfig.weight_update_timeout_s`.
        """
        assert global_steps is not None, "weights have a policy version"
        self._remove_lost()
        self._take_in_started()
        self._replacements.begin()
        self._ask(self._balancer.publish.remote(global_steps, self._leave_weights(global_steps)))
        if not self._have_enrolled:
            workers = {replica.server_address: replica.workers for replica in self.replicas}
            self._have_progress_told(self.replicas)
            self._ask(self._balancer.enroll.remote(workers))
            self._have_enrolled = True
            self.await_newest_weights()

    def _have_progress_told(self, replicas: Sequence[AsyncDAPOReplica]) -> None:
        for replica in replicas:
            for worker in replica.workers:
                worker.report_progress_to.remote(self._balancer, replica.server_address)

    def _leave_weights(self, version: int) -> Sequence[ObjectRef]:
        """Where the trainer's weights are."""
        parts = self.actor_wg.leave_weights(version=version)
        self._await_ranks(parts, version)
        [buckets] = filter(None, ray.get(parts))  # of rank 0
        return buckets

    def await_newest_weights(self) -> None:
        """Until each engine that is left has them."""
        self._ask(self._balancer.caught_up.remote(), timeout_s=2 * self._options.weight_update_timeout_s)
        self._remove_lost()

    def _take_in_started(self) -> None:
        for replica in self._replacements.take_started():
            self.replicas.append(replica)
            self._have_progress_told([replica])
            self._ask(self._balancer.join.remote(replica.server_address, replica.server_handle, replica.workers))
            self._watch(replica)
            logger.warning("%s has joined; engines: %d", replica, len(self.replicas))

    def _remove(self, replica: AsyncDAPOReplica) -> None:
        try:
            super()._remove(replica)
        except (TimeoutError, RayError) as error:  # the trainer needs nothing of its GPUs
            logger.warning("what is left of %s cannot be ended, and its GPUs stay unused: %s", replica, error)
        else:
            self._replacements.note_lost(replica)
