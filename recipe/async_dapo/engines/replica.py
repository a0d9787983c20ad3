"""An engine as the trainer has it: verl's replica with our servers, calls that end, and a name in messages."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

from ..config.derived import server_calls
from ..runtime.logs import log_phase
from .processes import EngineProcesses
from .server_actor import WATCH, ServerActor

logger = logging.getLogger(__name__)

FIRST_SLEEP_TIMES = 5  # as patient: host memory for all weights is pinned then, where they are kept (LoRA)
_WATCHING_CALLS = 10_000  # at once: the load balancer's, and one of each of its workers that serves the engine


class AsyncDAPOReplica(vLLMReplica):
    """verl's vLLM replica with this recipe's servers: knows its processes, and is bounded in going to sleep.

    Args:
        engine_timeout_s: `FIRST_SLEEP_TIMES` as long may the engine take to go to sleep for the first time [s].
        on_launched: called when the engine is up.
    """

    actor_class = ServerActor

    def __init__(self, *args: Any, engine_timeout_s: float, on_launched: Callable[[], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._on_launched = on_launched
        self._engine_timeout_s = engine_timeout_s
        self.server_class = ray.remote(concurrency_groups={WATCH: _WATCHING_CALLS})(self.actor_class)
        self.processes: list[EngineProcesses] = []  # of each server, one a node

    def __str__(self) -> str:
        return f"engine {self.replica_rank} ({'; '.join(map(str, self.processes)) or 'not started'})"

    @property
    def max_concurrency(self) -> int:
        """verl's counts one data-parallel rank's sequences."""
        return server_calls(self.config.max_num_seqs * self.config.data_parallel_size)

    async def launch_servers(self) -> None:
        await super().launch_servers()
        self.processes = [await server.processes.remote() for server in self.servers]
        self._on_launched()

    async def sleep(self) -> None:
        """verl asks for the first sleep; later ones are the load balancer's."""
        limit = f"{FIRST_SLEEP_TIMES} x async_dapo.engine_timeout_s={self._engine_timeout_s}"
        try:
            async with asyncio.timeout(FIRST_SLEEP_TIMES * self._engine_timeout_s):
                await super().sleep()
        except TimeoutError:
            raise TimeoutError(f"{self} has not gone to sleep within {limit}") from None

    def workers_beside(self) -> list[ActorHandle]:
        """For each server, a training worker on its node."""
        return self.workers[:: self.gpus_per_replica_node]


def end_engine(replica: AsyncDAPOReplica, *, timeout_s: float) -> list[str]:
    """End an engine that is lost, with all of its processes. Returns the exceptions that its servers died of.

    Args:
        timeout_s: `async_dapo.engine_timeout_s`; half of it is for a worker beside the engine that is busy.

    Raises:
        TimeoutError: when that has taken longer.
    """
    for server in replica.servers:
        ray.kill(server)
    endings = [
        worker.__ray_call__.remote(lambda _, processes=processes: processes.end(timeout_s=timeout_s / 2))
        for worker, processes in zip(replica.workers_beside(), replica.processes, strict=True)
    ]
    try:
        return [exception for exception in ray.get(endings, timeout=timeout_s) if exception]
    except RayActorError:
        logger.warning("%s: a worker beside it is gone as well, with its node or before", replica)
        return []
    except GetTimeoutError:
        raise TimeoutError(
            f"what is left of {replica} has not been ended within async_dapo.engine_timeout_s={timeout_s}: "
            "the training workers beside it do not answer"
        ) from None


def register_replica(cls: type[AsyncDAPOReplica], *, engine_timeout_s: float, engines: int) -> None:
    """Make verl launch our servers; the name stays `vllm`, which verl's weight transfer looks actors up by.

    Args:
        cls: of the engines.
        engines: that verl will launch in all [count].
    """
    numbers = itertools.count(1)

    def note_launch() -> None:
        log_phase(f"engine {next(numbers)} of {engines}")

    def load() -> partial[RolloutReplica]:
        return partial(cls, engine_timeout_s=engine_timeout_s, on_launched=note_launch)

    RolloutReplicaRegistry.register("vllm", load)
