"""A server that leaves while a job trains: real servers on emulated engines, in virtual time."""

import pytest

from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import recipe
from recipe.async_dapo_lab.rehearsal.servers import ModelMeter

from ..support.emulated_cluster import EmulatedCluster
from ..support.plan_settings import small_scenario

pytestmark = pytest.mark.slow
SERVERS = 4
SCENARIO = small_scenario(
    num_servers=SERVERS,
    train_batch_size=16,
    rollout_n=4,
    max_num_seqs=16,
    prompt_len_tok=2,
    max_response_length=900,
    lengths=LogNormalLengths(median_tok=250, sigma=0.5, correlation=0.5),
    valid_share=0.6,
)
SYSTEM = recipe("defaults")


class SizedCluster(EmulatedCluster):
    """Servers say what their engines' caches and steps were like, as real ones do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, TrainingRun(SCENARIO, SYSTEM).options, SCENARIO)
        for actor, engine in zip(self.servers, self.emulated, strict=True):
            actor._server._meter = ModelMeter(engine.model)

    def shares(self, steps: int) -> list[float]:
        """Requests that every engine ran on average over some steps, over an equal share."""
        before = [engine.model.counters.request_s for engine in self.emulated]
        for _ in range(steps):
            self.step()
        ran_s = [engine.model.counters.request_s - s for engine, s in zip(self.emulated, before, strict=True)]
        return [SERVERS * each_s / sum(ran_s) for each_s in ran_s]


@pytest.fixture
def cluster(clusters, monkeypatch):
    clusters.append(SizedCluster(monkeypatch))
    return clusters[0]


def test_given_a_server_that_leaves_then_places_and_work_follow_at_once(cluster):
    cluster.shares(2)
    cluster.balancer._lives.lose("server-3", "leaves")
    assert cluster.shares(2) == pytest.approx([4 / 3, 4 / 3, 4 / 3, 0.0], abs=0.15)
    assert cluster.balancer._balance.capacity == 3 * SCENARIO.max_num_seqs
