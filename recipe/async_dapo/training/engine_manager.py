"""What the trainer asks of all engines. One that has died is left out for good, and every call ends."""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError
from verl.checkpoint_engine import CheckpointEngineManager

from ..aio import RECONNECT_S, await_all
from ..config import AsyncDAPOConfig
from ..engines.engine_requests import EnginesUnavailable
from ..engines.replica import AsyncDAPOReplica
from ..rollout.manager import RolloutError

logger = logging.getLogger(__name__)


class EngineManager(CheckpointEngineManager):
    """verl's manager of engines that share the trainer's GPUs, one of which may be dead at any time.

    A dead engine leaves `replicas`, the list that verl's server manager has, too.

    Raises, in every call:
        EnginesUnavailable: when no engine is left, with what became of each.
    """

    def __init__(
        self, config: Any, actor_wg: Any, replicas: list[AsyncDAPOReplica], *, options: AsyncDAPOConfig
    ) -> None:
        super().__init__(config, actor_wg, replicas)
        self._options = options
        self._lost: list[str] = []
        self._watches: dict[int, list[ObjectRef]] = {}
        for replica in replicas:
            self._watch(replica)

    def _watch(self, replica: AsyncDAPOReplica) -> None:
        self._watches[replica.replica_rank] = [server.until_death.remote() for server in replica.servers]

    def sleep_replicas(self) -> None:
        self._remove_dead()
        replicas = list(self.replicas)
        for replica, failure in zip(replicas, asyncio.run(await_all(map(_sleep, replicas))), strict=True):
            if failure is not None:
                self._remove(replica, failure)
        self._check_some_are_left()

    def update_weights(self, global_steps: int | None = None) -> None:
        """Bring the trainer's weights to every living engine.

        Raises:
            TimeoutError: when that has taken longer than `AsyncDAPOConfig.weight_update_timeout_s`.
        """
        self._remove_dead()
        self._await_ranks(self.actor_wg.update_weights(global_steps=global_steps, mode=self.backend), global_steps)
        self._remove_dead()

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
            return
        except RolloutError:
            if not self.replicas or any(self._death_of(one, wait_s=RECONNECT_S) is None for one in self.replicas):
                raise
        self._remove_dead()

    def _remove_dead(self) -> None:
        for replica in list(self.replicas):
            if (failure := self._death_of(replica)) is not None:
                self._remove(replica, failure)
        self._check_some_are_left()

    def _death_of(self, replica: AsyncDAPOReplica, *, wait_s: float = 0.0) -> str | None:
        """What it died of; None if nothing is known of its death, after `wait_s` for each of its servers."""
        watches = self._watches[replica.replica_rank]
        for index, server in enumerate(replica.servers):
            ready, _ = ray.wait([watches[index]], num_returns=1, timeout=wait_s)
            if not ready:
                continue
            try:
                ray.get(ready[0])
            except ActorUnavailableError:  # only the connection broke
                watches[index] = server.until_death.remote()
            except RayActorError as error:
                return f"died: {_first_line(error)}"
        return None

    def _remove(self, replica: AsyncDAPOReplica, failure: str) -> None:
        """Take an engine out for good, with all of its processes: they would keep memory that training needs."""
        self.replicas.remove(replica)
        for server in replica.servers:
            ray.kill(server)
        limit_s = self._options.engine_timeout_s / 2  # the other half is for a worker that is busy
        endings = [
            worker.__ray_call__.remote(lambda _, processes=processes: processes.end(timeout_s=limit_s))
            for worker, processes in zip(replica.workers_beside(), replica.processes, strict=True)
        ]
        try:
            for exception in filter(None, ray.get(endings, timeout=self._options.engine_timeout_s)):
                failure = f"died: {exception}"
        except RayActorError:
            logger.warning("%s: a worker beside it is gone as well, with its node or before", replica)
        except GetTimeoutError:
            raise TimeoutError(
                f"what is left of {replica} has not been ended within async_dapo.engine_timeout_s="
                f"{self._options.engine_timeout_s}: the training workers beside it do not answer"
            ) from None
        self._lost.append(f"{replica} {failure}")
        logger.critical("%s %s; engines left: %d", replica, failure, len(self.replicas))

    def _check_some_are_left(self) -> None:
        if not self.replicas:
            raise EnginesUnavailable(
                f"no engine is left: {'; '.join(self._lost)}. Start the command again: with trainer.resume_mode=auto "
                "it goes on from the last checkpoint"
            )


async def _sleep(replica: AsyncDAPOReplica) -> str | None:
    """What went wrong, or None."""
    try:
        while True:
            try:
                await replica.sleep()
                return None
            except ActorUnavailableError:  # only the connection broke; Ray ends these, by reaching it or by its death
                await asyncio.sleep(RECONNECT_S)
    except TimeoutError as error:
        return f"was given up: {error}"
    except RayActorError as error:
        return f"died: {_first_line(error)}"


def _first_line(error: RayActorError) -> str:
    """Ray goes on with every reason there could be."""
    return str(error).split("\n", 1)[0]
