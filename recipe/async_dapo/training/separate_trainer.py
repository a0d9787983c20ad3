"""The trainer with engines on GPUs of their own: they generate while it trains, and it never waits for one of them.

    trainer    wait for B valid groups -- train -- leave the weights in the object store -- wait for B valid groups --
    engines    generate ----------- one at a time: take the weights ----------- generate --------------------------

Only a checkpoint and a validation stop the engines: the first holds what they have generated, the second asks all of
them under the newest weights.
"""

import logging
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError
from verl.checkpoint_engine import CheckpointEngineManager
from verl.workers.rollout.llm_server import LLMServerManager

from ..engines.replica import AsyncDAPOReplica
from ..logs import log_phase
from .engine_manager import EngineManager
from .rolling_buffer import RollingReplayBuffer
from .trainer import AsyncDAPOTrainer

logger = logging.getLogger(__name__)


class SeparateEngines(EngineManager):
    """The trainer's view of engines that have GPUs of their own: it leaves weights for them.

    Args:
        balancer: brings the weights to the engines, see `RollingLoadBalancer`.
    """

    def __init__(self, *args: Any, balancer: ActorHandle, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._balancer = balancer
        self._have_enrolled = False

    def sleep_replicas(self) -> None:
        """They never do."""

    def update_weights(self, global_steps: int | None = None) -> None:
        """Leave the trainer's weights where engines can take them. Waits for the engines only the first time.

        Raises:
            TimeoutError: when that has taken longer than `AsyncDAPOConfig.weight_update_timeout_s`.
        """
        assert global_steps is not None, "weights have a policy version"
        self._remove_dead()
        calls = self.actor_wg.leave_weights(version=global_steps)
        self._await_ranks(calls, global_steps)
        [buckets] = filter(None, ray.get(calls))  # of rank 0
        self._ask(self._balancer.publish.remote(global_steps, buckets))
        if not self._have_enrolled:
            workers = {replica.server_address: replica.workers for replica in self.replicas}
            self._ask(self._balancer.enroll.remote(workers))
            self._have_enrolled = True
            self.await_newest_weights()

    def await_newest_weights(self) -> None:
        """Until each engine that is left has them."""
        self._ask(self._balancer.caught_up.remote(), timeout_s=2 * self._options.weight_update_timeout_s)
        self._remove_dead()

    def _remove(self, replica: AsyncDAPOReplica, failure: str) -> None:
        self._ask(self._balancer.remove_servers.remote([replica.server_address]))
        super()._remove(replica, failure)

    def _ask(self, answer: ray.ObjectRef, timeout_s: float | None = None) -> None:
        limit_s = self._options.stop_timeout_s if timeout_s is None else timeout_s
        try:
            ray.get(answer, timeout=limit_s)
        except GetTimeoutError:
            raise TimeoutError(f"the load balancer has not answered within {limit_s:g} s") from None


class SeparateTrainer(AsyncDAPOTrainer):
    """One step: wait for B valid groups, train on them, and leave the weights for the engines."""

    _enable_hybrid_replicas = False  # verl's: no engine on the training GPUs
    _engines: SeparateEngines

    def _build_replay_buffer(self) -> RollingReplayBuffer:
        return RollingReplayBuffer(self.options, self._draw)

    def _manage_engines(self, verls: CheckpointEngineManager) -> SeparateEngines:
        log_phase("engines start on GPUs of their own")
        self.llm_server_manager = LLMServerManager.create(config=self.config)
        return SeparateEngines(
            verls.config,
            verls.actor_wg,
            self.llm_server_manager.get_replicas(),
            options=self.options,
            balancer=self.llm_server_manager.global_load_balancer,
        )

    def on_step_end(self) -> None:
        with self._updating_weights():
            self.checkpoint_manager.update_weights(self.global_steps)

    def on_validate_begin(self) -> None:
        self.replay_buffer.end_round()
        self._engines.await_newest_weights()
        self.replay_buffer.manager.open_engines()
        super().on_validate_begin()

    def _save_checkpoint(self) -> None:
        self.replay_buffer.end_round()
        super()._save_checkpoint()

    def _get_n_gpus_for_throughput(self) -> int:
        rollout = self.config.actor_rollout_ref.rollout
        gpus: int = super()._get_n_gpus_for_throughput() + rollout.nnodes * rollout.n_gpus_per_node
        return gpus
