"""Engines in the place of lost ones: a start that fails frees what it had taken, and is not repeated for ever."""

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import ray
from ray.util import placement_group, placement_group_table

from recipe.async_dapo.extensions.separate import engines as separate_engines
from recipe.async_dapo.extensions.separate.engines import MOST_FAILED_STARTS, Replacements

from ....support.plain_actors import Worker
from ....support.real_actors import eventually, within_patience

RESOURCE = "CPU"  # counts as an engine's GPU

pytestmark = pytest.mark.usefixtures("local_cluster")


class Manager:
    """verl's, whose replicas take a GPU and a worker; the first ones then fail."""

    rollout_config = SimpleNamespace(n_gpus_per_node=1)
    model_config = None

    def __init__(self, *, failing: int) -> None:
        self.failing = failing
        self.replicas: list[Replica] = []

    def get_replicas(self) -> list["Replica"]:
        return []

    def rollout_replica_class(self, *, replica_rank: int, **_: object) -> "Replica":
        self.replicas.append(Replica(replica_rank, fails=len(self.replicas) < self.failing))
        return self.replicas[-1]


class Replica:
    world_size = 1
    servers = ()

    def __init__(self, replica_rank: int, *, fails: bool) -> None:
        self.replica_rank = replica_rank
        self._fails = fails
        self.resource_pool: SimpleNamespace | None = None
        self.workers: tuple[ray.actor.ActorHandle, ...] = ()

    async def init_standalone(self) -> None:
        group = placement_group([{RESOURCE: 1}])
        await group.ready()
        self.resource_pool = SimpleNamespace(pgs=[group])
        self.workers = (ray.remote(num_cpus=0)(Worker).remote(),)
        await self.workers[0].ping.remote()
        if self._fails:
            raise RuntimeError("no room for the KV cache")


def wait_until(condition: Callable[[], bool]) -> None:
    async def is_met() -> bool:
        return condition()

    within_patience(eventually(is_met))


def start_one(replacements: Replacements) -> Replica | None:
    """What has started, when the start is over."""
    wait_until(lambda: ray.available_resources().get(RESOURCE, 0.0) >= Replica.world_size)
    replacements.begin()
    for thread in threading.enumerate():
        if thread.name == "start-engine":
            thread.join()
    started = replacements.take_started()
    assert len(started) <= 1
    return started[0] if started else None


@pytest.fixture(autouse=True)
def engines_take_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(separate_engines, "get_resource_name", lambda: RESOURCE)


def is_dead(actor: ray.actor.ActorHandle) -> bool:
    try:
        ray.get(actor.ping.remote())
    except ray.exceptions.RayActorError:
        return True
    return False  # the kill is on its way


def is_gone(replica: Replica) -> bool:
    assert replica.resource_pool is not None
    [group] = replica.resource_pool.pgs
    return placement_group_table(group)["state"] == "REMOVED"


def test_a_failed_start_frees_its_gpus_and_ends_its_workers_and_another_takes_its_place() -> None:
    manager = Manager(failing=1)
    replacements = Replacements(manager)
    replacements.note_lost(Replica(0, fails=False))
    assert start_one(replacements) is None
    failed = manager.replicas[0]
    wait_until(lambda: is_gone(failed) and is_dead(failed.workers[0]))
    started = start_one(replacements)
    assert started is manager.replicas[1] and started.replica_rank != failed.replica_rank
    assert start_one(replacements) is None and len(manager.replicas) == 2  # none is missing any more
    replacements.note_lost(started)
    wait_until(lambda: is_gone(started))


def test_starts_that_keep_failing_are_given_up() -> None:
    manager = Manager(failing=10)
    replacements = Replacements(manager)
    replacements.note_lost(Replica(0, fails=False))
    for _ in range(MOST_FAILED_STARTS + 2):
        assert start_one(replacements) is None
    assert len(manager.replicas) == MOST_FAILED_STARTS
