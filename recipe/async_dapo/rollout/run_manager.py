"""The agent loop manager of a run, but for its rounds: its workers start before there are engines, and are connected
with them later.

`manager.py` has the rounds.
"""

from types import SimpleNamespace
from typing import Any, Self

import ray
from omegaconf import DictConfig
from ray.actor import ActorHandle
from verl.experimental.agent_loop import AgentLoopManager

from ..config.options import AsyncDAPOConfig
from ..core.leases import MAX_PENDING_CALLS
from ..engines.client import AsyncDAPOLLMClient
from ..runtime.containment import contain_tasks
from .all_workers import connected
from .coordinator import EarlyStoppingCoordinatorActor
from .worker import AsyncDAPOAgentLoopWorker


class RunManager(AgentLoopManager):
    """verl's manager of agent loop workers, with a coordinator, the load balancer and verl's reward workers."""

    _coordinator_actor: Any = EarlyStoppingCoordinatorActor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.agent_loop_workers_class = ray.remote(max_concurrency=MAX_PENDING_CALLS)(AsyncDAPOAgentLoopWorker)
        super().__init__(*args, **kwargs)
        self._options = AsyncDAPOConfig.from_hydra(self.config)

    @classmethod
    def start(cls, config: DictConfig) -> Self:
        """Start the workers, without waiting for them."""
        return cls.create(config=config, llm_client=SimpleNamespace())  # verl's workers make notes on their client

    def connect(self, llm_client: AsyncDAPOLLMClient, reward_workers: list[ActorHandle]) -> None:
        """Give the workers the engines' client, verl's reward workers and a coordinator."""
        self.llm_client = llm_client
        self._balancer = llm_client._load_balancer
        self._coordinator = self._coordinator_actor.remote(self._balancer, self._options.stop_timeout_s)
        self._reward_workers = reward_workers
        self._get(connected(self.agent_loop_workers, self._coordinator, llm_client, reward_workers))
        self._get([actor.__ray_call__.remote(contain_tasks) for actor in self.named_actors.values()])

    @property
    def named_workers(self) -> dict[str, ActorHandle]:
        return {f"agent loop worker {index}": worker for index, worker in enumerate(self.agent_loop_workers)}

    @property
    def named_actors(self) -> dict[str, ActorHandle]:
        """Those that every step needs. An engine may die."""
        rewards = {f"reward worker {index}": worker for index, worker in enumerate(self._reward_workers)}
        return {"coordinator": self._coordinator, "load balancer": self._balancer} | self.named_workers | rewards

    def end(self) -> None:
        """The run is over: nobody is told any more that an engine has ended."""
        self._get(self._balancer.end.remote())

    def _get(self, refs: Any) -> Any:
        """What actors have answered, or `RolloutError`."""
        raise NotImplementedError
