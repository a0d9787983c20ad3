"""Rounds that size themselves, on virtual time: what the engines say reaches the controller, and its decisions act."""

from typing import Any

import pytest

from recipe.async_dapo.config.router import first_context_tok
from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo.core.mix import ALL

from ..support.simulated_cluster import Cluster, resumed
from ..support.simulated_options import AUTO, options
from ..support.simulated_worker import Task


def small_engines(cluster: Cluster, *, capacity: int) -> None:
    """With room for so many requests of the length that is expected first."""
    for server in cluster.servers:
        server.kv_room_tok = int(capacity * first_context_tok(cluster.options) / 0.85) + 1


def test_given_engines_with_little_room_then_no_more_is_in_flight_than_they_have_room_for(start) -> None:
    cluster = start(options(**AUTO), task=Task(length_of=lambda prompt_ids: 40))
    small_engines(cluster, capacity=5)
    cluster.step()
    said = cluster.records[-1].balancer
    assert cluster.specs[-1].pool_size == 10
    assert max(server.max_running for server in cluster.servers) <= 5
    assert said.concurrency_state.context_tok == 1, "what these engines report of each request"
    assert said.capacity == 2 * 256, "the sequences of an engine"


@pytest.mark.slow
def test_given_a_limit_on_staleness_then_the_pool_follows_the_lengths_that_were_seen(start) -> None:
    cluster = start(options(**AUTO, max_staleness=2), task=Task(length_of=lambda prompt_ids: 100))
    cluster.step()
    metrics = cluster.step()
    share = metrics["async_dapo/filter/valid_share"]
    cluster.step()
    assert cluster.specs[-1].most_unfinished == int(8 * 3 / share)
    assert cluster.specs[-1].pool_size == 2 * 256, "the sequences of an engine"


def test_given_a_checkpoint_then_the_next_run_begins_with_what_was_learned(start) -> None:
    cluster = start(options(**AUTO))
    cluster.steps(2)
    capacity = cluster.records[-1].balancer.capacity
    again = resumed(start, cluster)
    again.buffer.open_round(again.step_number + 1)
    assert again.manager.capacity == capacity
    again.buffer.sample(again.step_number + 1, "train", 8)


def test_given_a_validation_of_long_answers_then_the_next_round_learns_what_it_would_without(start) -> None:
    def learned(*, validates: bool) -> tuple[Any, ...]:
        factor = 1
        opts = options(**(AUTO | {"rollout_strategy": RolloutStrategy.DISCARD, "target_valid_groups": 2}))
        cluster = start(opts, task=Task(length_of=lambda prompt_ids: factor * (4 + prompt_ids[1])))
        for server in cluster.servers:
            server.max_num_seqs = 5
        cluster.step()
        if validates:
            factor = 10
            cluster.validate(4)
            factor = 1
        cluster.step()
        said = cluster.records[-1].balancer
        learned = said.concurrency_state, said.concurrency_reason, said.capacity, said.steered
        return said.loads, learned, cluster.balancer._table.peaks

    assert learned(validates=True) == learned(validates=False)


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
    assert pool.available[ALL].certain == len(pool.carried) + len(certain)
