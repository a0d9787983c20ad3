"""TransferQueue's actors are placed where a node offers CPUs; a head of a cluster may offer none."""

import inspect
from types import SimpleNamespace

import pytest
import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from transfer_queue.controller import TransferQueueController
from transfer_queue.storage.simple_storage import SimpleStorageUnit
from transfer_queue.utils.common import get_node_round_robin_scheduling_strategies
from verl.single_controller.ray.base import RayResourcePool, ResourcePoolManager
from verl.workers.rollout.replica import RolloutReplica

from recipe.async_dapo import data_plane
from recipe.async_dapo.config.values import ConfigError

from ..support.composed_runs import compose_run


def test_given_a_head_without_cpus_then_no_storage_is_placed_on_it(monkeypatch) -> None:
    nodes = [
        {"NodeID": "a" * 56, "Alive": True, "Resources": {"memory": 1e9}},
        {"NodeID": "b" * 56, "Alive": True, "Resources": {"CPU": 8.0}},
    ]
    started: list[DictConfig] = []
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "get_actor", _no_such_actor)
    monkeypatch.setattr(tq, "init", started.append)
    backend = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 4}}
    data_plane.start_queue(OmegaConf.create({"backend": backend}))
    storage = started[0].backend.SimpleStorage
    places = get_node_round_robin_scheduling_strategies(storage.num_data_storage_units, storage.required_node_resource)
    assert {place.node_id for place in places} == {"b" * 56}


@pytest.mark.parametrize(
    ("cpus", "gpus", "engine_gpus", "most"),
    [
        ([8], 1, 0, 3),  # the default of 8 units on a small machine
        ([16], 1, 0, 11),
        ([13], 1, 0, 8),
        ([96, 96], 16, 0, 142),
        ([96, 4], 1, 0, 8),  # every second one is placed on the small node
        ([2, *[96] * 8], 64, 0, 9),  # the first actor is on the small head: one is left for a unit
        ([64], 4, 4, 42),
        ([5], 1, 0, 0),
    ],
)
def test_given_more_storage_units_than_cpus_then_the_run_ends_and_says_how_many_fit(
    monkeypatch, cpus, gpus, engine_gpus, most
) -> None:
    nodes = [{"NodeID": f"{i}", "Alive": True, "Resources": {"CPU": float(count)}} for i, count in enumerate(cpus)]
    monkeypatch.setattr(ray, "nodes", lambda: [*nodes, {"NodeID": "x", "Alive": False, "Resources": {"CPU": 99.0}}])
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "0"))
    config = compose_run(["trainer.nnodes=1", f"trainer.n_gpus_per_node={gpus}"])
    if engine_gpus:
        config.async_dapo.placement = "separate"
        config.actor_rollout_ref.rollout.update({"nnodes": 1, "n_gpus_per_node": engine_gpus})
    storage = config.transfer_queue.backend.SimpleStorage
    if most:
        storage.num_data_storage_units = most
        data_plane.check_cpus(config)
    storage.num_data_storage_units = most + 1
    says = f"set at most {most}, or start Ray with more" if most else f"take {2 + 3 * gpus}: start Ray with more"
    says = f"the smallest with {min(cpus)}, .*{says}"
    with pytest.raises(ConfigError, match=rf"SimpleStorage.num_data_storage_units={most + 1}: .*{says}"):
        data_plane.check_cpus(config)


def test_a_unit_takes_one_cpu_and_a_gpu_as_many_as_are_counted() -> None:
    assert [kind._default_options["num_cpus"] for kind in (SimpleStorageUnit, TransferQueueController)] == [1, 1]
    assert inspect.signature(ResourcePoolManager).parameters["max_colocate_count"].default == 3
    assert "max_colocate_count=2" in inspect.getsource(RolloutReplica.init_standalone)
    assert 'bundle = {"CPU": self.max_colocate_count}' in inspect.getsource(RayResourcePool.get_placement_groups)


def _no_such_actor(name: str, namespace: str) -> None:
    raise ValueError(name)
