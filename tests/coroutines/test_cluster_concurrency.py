"""Rounds that size themselves, on virtual time: what the engines say reaches the controller, and its decisions act."""

import pytest

from recipe.async_dapo.config import Auto, RolloutStrategy
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.training.rollout_state import from_frames, to_frames

from ..support.simulated_cluster import Cluster
from ..support.simulated_options import options
from ..support.simulated_worker import Task

METRIC = "async_dapo/concurrency/"
AUTO = {
    "rollout_pool_size": Auto.AUTO,
    "over_sampling_batch_size": Auto.AUTO,
    "max_loads_per_server": None,
    "rollout_strategy": RolloutStrategy.PARTIAL,
    "stop_rule": StopRuleName.FIRST_COMPLETED,
    "target_valid_groups": 8,
}


def small_engines(cluster: Cluster, *, places: int) -> None:
    """With room for so many requests of the length that is expected first."""
    for server in cluster.servers:
        server.kv_room_tok = int(places * cluster.options.first_context_tok / 0.85) + 1


def test_given_engines_with_little_room_then_no_more_is_in_flight_than_they_have_room_for(start) -> None:
    cluster = start(options(**AUTO), task=Task(length_of=lambda prompt_ids: 40))
    small_engines(cluster, places=5)
    metrics = cluster.step()
    assert metrics[METRIC + "pool_size"] == 10
    assert max(server.max_running for server in cluster.servers) <= 5
    assert metrics[METRIC + "context_tok"] == 1, "what these engines report of each request"
    assert metrics[METRIC + "places"] == 2 * 256, "the sequences of an engine"


def test_given_a_limit_on_staleness_then_the_pool_follows_the_lengths_that_were_seen(start) -> None:
    cluster = start(options(**AUTO, max_staleness=2), task=Task(length_of=lambda prompt_ids: 100))
    cluster.step()
    metrics = cluster.step()
    assert metrics[METRIC + "staleness_bound"] == int(8 * 3 / metrics["async_dapo/filter/valid_share"])
    assert metrics[METRIC + "pool_size"] <= metrics[METRIC + "places"]


def test_given_a_checkpoint_then_the_next_run_begins_with_what_was_learned(start, monkeypatch) -> None:
    cluster = start(options(**AUTO))
    for _ in range(2):
        learned = cluster.step()
    state = from_frames(to_frames(cluster.buffer.state()))
    resumed = start(options(**AUTO))
    resumed.step_number, resumed.num_drawn = cluster.step_number, cluster.num_drawn
    resumed.buffer.restore(state)
    resumed.store.rows = cluster.store.rows
    resumed.update_weights()
    resumed.buffer.open_round(resumed.step_number + 1)
    assert resumed.manager.places == learned[METRIC + "places"]
    resumed.buffer.sample(resumed.step_number + 1, "train", 8)


def test_given_groups_that_the_stop_interrupts_then_those_that_are_certain_count_as_valid(start) -> None:
    task = Task(
        length_of=lambda prompt_ids: 5 + 30 * prompt_ids[1] + 4 * prompt_ids[0],
        metric_of=lambda prompt_ids: float(prompt_ids[1] == 0),
    )
    cluster = start(options(**AUTO), task=task)
    cluster.step()
    pool = cluster.buffer.pool
    ended = {group.uid: sum(one.is_finished for one in group.trajectories) for group in pool.buffered}
    certain = {group.uid for group in pool.buffered if group.is_certain}
    assert certain == {uid for uid, count in ended.items() if count >= 2} and 0 < len(certain) < len(ended)
    assert pool.at_hand.certain == pool.num_carried + len(certain)


@pytest.mark.parametrize(("max_staleness", "most"), [(None, 15), (0, 6)])
def test_given_trajectories_that_wait_for_tools_then_others_take_their_places_as_far_as_staleness_allows(
    start, max_staleness: int | None, most: int
) -> None:
    """Five groups of three are held, and three trajectories may generate at once."""
    opts = options(
        rollout_strategy=RolloutStrategy.PARTIAL, rollout_pool_size=3, num_workers=1, max_staleness=max_staleness
    )
    cluster = start(opts, task=Task(length_of=lambda prompt_ids: 10, tool_s=100.0))
    metrics = cluster.step()
    assert metrics["async_dapo/calls/waiting_max"] == most
    assert metrics["async_dapo/load_balancer/inflight/max"] == 3
    assert metrics["async_dapo/round/rollout_s"] < 150, "one group after another would take twice the tool's time"
    turns = {name: metrics[f"async_dapo/turns/{name}"] for name in ("mean", "max", "tokens/mean", "tokens/max")}
    assert turns == {"mean": 1, "max": 1, "tokens/mean": 10, "tokens/max": 10}
    assert metrics["async_dapo/turns/calls_s"] == pytest.approx(100)


def test_given_rounds_then_a_line_says_what_may_run_next_and_why_and_is_shown_where_that_has_changed(
    start, caplog
) -> None:
    cluster = start(options(**AUTO), task=Task(length_of=lambda prompt_ids: 40))
    small_engines(cluster, places=5)
    caplog.set_level("DEBUG", logger="recipe.async_dapo.training.run_news")
    for _ in range(4):
        cluster.step()
    lines = [record for record in caplog.records if "in flight; next: room for" in record.message]
    assert [record.message.split(":")[0] for record in lines] == [f"step {step}" for step in (1, 2, 3, 4)]
    assert "10 in flight; next: room for 512 (places to spare" in lines[0].message
    assert [record.levelname for record in lines] == ["INFO", "DEBUG", "DEBUG", "DEBUG"]
