"""What the trainer asks of all engines. One that is lost is left out for good, and every call ends."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError
from verl.checkpoint_engine import CheckpointEngineManager
from verl.workers.rollout.llm_server import LLMServerManager

from ..config.options import AsyncDAPOConfig
from ..engines.engine_requests import EnginesUnavailable
from ..engines.replica import AsyncDAPOReplica, end_engine
from ..rollout.all_workers import RolloutError

QUICK_ANSWER_S = 10.0  # for the load balancer to answer, when a round has failed


class EngineManager(CheckpointEngineManager):
    """verl's manager of engines that share the trainer's GPUs, one of which may be dead at any time.

    The load balancer says which are lost. They leave `replicas`, the list that verl's server manager has, too.

    Args:
        manager: verl's, with the engines and `GlobalLoadBalancer`.

    Raises, in every call:
        EnginesUnavailable: when no engine is left, with what became of each.
    """

    def __init__(self, config: Any, actor_wg: Any, *, manager: LLMServerManager, options: AsyncDAPOConfig) -> None:
        super().__init__(config, actor_wg, manager.get_replicas())
        self._options = options
        self._balancer: ActorHandle = manager.global_load_balancer
        for replica in self.replicas:
            self._watch(replica)

    def call_extension(self, name: str, place: str, *args: Any) -> list[Any]:
        """Call an extension's function, named "module.function", in each process of each engine; it is given what takes
        the weights there. Returns the answers.
        """
        answers: list[Any] = self._ask(self._balancer.call_extension.remote(name, place, *args))
        return answers

    def _watch(self, replica: AsyncDAPOReplica) -> None:
        self._ask(self._balancer.watch.remote(replica.server_address, str(replica), replica.servers))

    def sleep_replicas(self) -> None:
        self._ask(self._balancer.sleep.remote())
        self._remove_lost()

    def update_weights(self, global_steps: int | None = None) -> None:
        """Bring the trainer's weights to every living engine.

        Raises:
            TimeoutError: when that has taken longer than `AsyncDAPOConfig.weight_update_timeout_s`.
        """
        self._remove_lost()
        self._await_ranks(self.actor_wg.update_weights(global_steps=global_steps, mode=self.backend), global_steps)
        self._remove_lost()

    def _await_ranks(self, parts: Sequence[ObjectRef], global_steps: int | None) -> None:
        """Wait for the training workers' part in a weight update.

        Raises:
            TimeoutError: as `update_weights`.
        """
        pending = list(parts)
        deadline = time.monotonic() + self._options.weight_update_timeout_s
        while pending:
            ready, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                ranks = [rank for rank, part in enumerate(parts) if part in pending]
                raise TimeoutError(
                    f"weight update {global_steps}: training ranks {ranks} have not ended within "
                    f"{self._options.weight_update_timeout_s:g} s, 15 x async_dapo.engine_timeout_s; engines: "
                    f"{', '.join(map(str, self.replicas))}"
                )
            ray.get(ready)

    @contextmanager
    def naming_lost_engines(self) -> Iterator[None]:
        """A round that fails because no engine is left says which were lost, and of what."""
        try:
            yield
        except RolloutError:
            with suppress(RayError, TimeoutError):  # the load balancer may be what died, or an engine's node hangs
                ray.get(self._balancer.lost_engines.remote(), timeout=QUICK_ANSWER_S)
                self._remove_lost()
            raise

    def _remove_lost(self) -> None:
        lost = self._ask(self._balancer.lost_engines.remote())
        for replica in [one for one in self.replicas if one.server_address in lost]:
            self._remove(replica)
        if lost and not self.replicas:
            lost = self._ask(self._balancer.lost_engines.remote())
            raise EnginesUnavailable(
                f"no engine is left: {'; '.join(lost.values())}. Start the command again: with "
                "trainer.resume_mode=auto it goes on from the last checkpoint"
            ) from None

    def _remove(self, replica: AsyncDAPOReplica) -> None:
        """Take an engine out for good, with all of its processes: they would keep memory that training needs."""
        self.replicas.remove(replica)
        for exception in end_engine(replica, timeout_s=self._options.engine_timeout_s):
            self._ask(self._balancer.explain_loss.remote(replica.server_address, f"died: {exception}"))

    def _ask(self, answer: ObjectRef, timeout_s: float | None = None) -> Any:
        limit_s = self._options.stop_timeout_s if timeout_s is None else timeout_s
        try:
            return ray.get(answer, timeout=limit_s)
        except GetTimeoutError:
            raise TimeoutError(f"the load balancer has not answered within {limit_s:g} s") from None
