"""TransferQueue's actors are placed where a node offers CPUs; a head of a cluster may offer none."""

import ray
from transfer_queue.utils.common import get_node_round_robin_scheduling_strategies

from recipe.async_dapo.store import NODES_WITH


def test_given_a_head_without_cpus_then_no_storage_is_placed_on_it(monkeypatch) -> None:
    nodes = [
        {"NodeID": "a" * 56, "Alive": True, "Resources": {"memory": 1e9}},
        {"NodeID": "b" * 56, "Alive": True, "Resources": {"CPU": 8.0}},
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    placed = {strategy.node_id for strategy in get_node_round_robin_scheduling_strategies(4, NODES_WITH)}
    assert placed == {"b" * 56}
