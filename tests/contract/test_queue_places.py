"""TransferQueue's actors are placed where a node offers CPUs; a head of a cluster may offer none."""

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from transfer_queue.utils.common import get_node_round_robin_scheduling_strategies

from recipe.async_dapo import store


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
    store.start_queue(OmegaConf.create({"backend": backend}))
    storage = started[0].backend.SimpleStorage
    places = get_node_round_robin_scheduling_strategies(storage.num_data_storage_units, storage.required_node_resource)
    assert {place.node_id for place in places} == {"b" * 56}


def _no_such_actor(name: str, namespace: str) -> None:
    raise ValueError(name)
