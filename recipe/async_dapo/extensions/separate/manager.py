"""The manager of rounds that go on while the trainer trains their batches."""

import time
from typing import Any

from ray.actor import ActorHandle

from ...engines.client import AsyncDAPOLLMClient
from ...rollout.group_rollout import WorkerReport
from ...rollout.manager import AsyncDAPOAgentLoopManager, RoundRecord
from .coordinator import RollingCoordinatorActor


class RollingManager(AsyncDAPOAgentLoopManager):
    """A manager whose training rounds hand over a batch for each step, and stop when they are told to."""

    _coordinator_actor: Any = RollingCoordinatorActor

    def connect(self, llm_client: AsyncDAPOLLMClient, reward_workers: list[ActorHandle]) -> None:
        super().connect(llm_client, reward_workers)
        self._get(self._balancer.report_versions_to.remote(self._coordinator))

    def hand_over(self) -> RoundRecord | None:
        """The next batch of a round that goes on, and all that has ended since the one before; None = wait again."""
        summary = self.ask("hand_over")
        if summary is None:
            return None
        reports = self._get([worker.take_report.remote() for worker in self.agent_loop_workers])
        balancer, self._capacity = self._get(self._balancer.turn_over.remote())
        rollout_s = time.monotonic() - self._started
        self._started += rollout_s
        self._deadline = None
        return RoundRecord(
            summary=summary,
            workers=sum(reports, WorkerReport()),
            rollout_s=rollout_s,
            balancer=balancer,
        )
