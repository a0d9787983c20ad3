"""Agent loops with a state, on virtual time: they go on from round to round, or run again, and no token is lost."""

from dataclasses import replace

import pytest

from recipe.async_dapo.config.options import CallsConfig
from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo.core.staleness import StalenessLimit
from recipe.async_dapo.core.stop_rules import StopRuleName

from ....support.simulated_cluster import resumed
from ....support.simulated_options import options
from ....support.simulated_worker import random_task


def opts(*, most: int, workers: int = 1, **changes):
    return options(
        rollout_strategy=RolloutStrategy.PARTIAL,
        stop_rule=StopRuleName.FIRST_COMPLETED,
        num_workers=workers,
        rollout_pool_size=9,
        calls=CallsConfig(timeout_s=3600.0, check=None, short_s=1.0, journal_limit_mb=1, kept_loops=most),
        extensions=("agents",),
        **changes,
    )


LIMITED = {"max_tokens_per_round": 10, "max_concurrent_prompts": 4}  # loops rest while the round goes on

SEEN = ("calls/kept_loops", "calls/lost_loops", "partial/resumed_groups", "partial/diverged_tokens")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("changes", "about"),
    [({}, {"keeps_state": True}), ({"workers": 3}, {"replayable": False}), (LIMITED, {"keeps_state": True})],
)
def test_given_room_for_all_when_rounds_stop_then_every_loop_is_begun_once(
    start, changes: dict[str, int], about: dict[str, bool], seed: int
) -> None:
    """One that cannot run again goes on in its worker, however idle others are."""
    cluster = start(opts(most=64, **changes), task=replace(random_task(seed), tool_s=3.0, **about))
    metrics = cluster.steps(8)
    begun = [loop for worker in cluster.workers for loop in worker.loops_begun]
    assert len(begun) == len(set(begun)) > len(cluster.trained)
    totals = {name: sum(step[f"async_dapo/{name}"] for step in metrics) for name in SEEN}
    assert totals["calls/kept_loops"] > 0 and totals["partial/resumed_groups"] > 0
    assert totals["partial/diverged_tokens"] == totals["calls/lost_loops"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("most", [0, 2])
def test_given_no_room_for_some_when_rounds_stop_then_those_run_again(start, most: int, seed: int) -> None:
    cluster = start(opts(most=most, workers=2), task=replace(random_task(seed), tool_s=3.0, keeps_state=True))
    metrics = cluster.steps(8)
    begun = [loop for worker in cluster.workers for loop in worker.loops_begun]
    assert len(begun) > len(set(begun))
    assert max(step["async_dapo/calls/kept_loops"] for step in metrics) <= 2 * most


def test_given_several_workers_when_a_group_is_continued_then_the_worker_with_its_loops_takes_it(start):
    """But for some, which workers take that have nothing else to do."""

    def begun_again(most: int) -> int:
        task = replace(random_task(0), tool_s=3.0, keeps_state=True)
        cluster = start(opts(most=most, workers=3), task=task)
        cluster.steps(8)
        begun = [loop for worker in cluster.workers for loop in worker.loops_begun]
        return len(begun) - len(set(begun))

    assert begun_again(64) <= begun_again(0) / 2


def test_given_groups_that_become_too_stale_then_their_loops_end(start) -> None:
    task = replace(random_task(3), tool_s=3.0, keeps_state=True)
    cluster = start(opts(most=64, over_sampling_batch_size=9), task=task)
    cluster.steps(6)
    cluster.buffer.pool._staleness = StalenessLimit(max_staleness=0)  # tighter than the rounds know
    cluster.steps(2)
    assert cluster.buffer.pool.ledger.retired > 0
    [worker] = cluster.workers
    waiting = {one.name for group in cluster.buffer.pool.buffered for one in group.suspensions()}
    assert set(worker._loops.kept._resting) == waiting


@pytest.mark.parametrize("most", [0, 2])
def test_given_loops_that_cannot_run_again_when_there_is_no_room_then_their_groups_are_retired_and_counted(
    start, most: int
) -> None:
    cluster = start(opts(most=most), task=replace(random_task(0), tool_s=3.0, replayable=False))
    metrics = cluster.steps(8)
    retired = metrics[-1]["async_dapo/ledger/retired"]
    assert sum(step["async_dapo/calls/lost_loops"] for step in metrics) >= retired > 0
    [worker] = cluster.workers
    assert len(worker.loops_begun) == len(set(worker.loops_begun)), "one has begun anew"


def test_given_loops_that_cannot_run_again_when_the_run_is_resumed_then_their_groups_are_retired_and_counted(start):
    cluster = start(opts(most=64), task=replace(random_task(0), tool_s=3.0, replayable=False))
    while not (kept := [group.uid for group in cluster.buffer.pool.buffered if group.suspensions()]):
        cluster.step()
    cluster = resumed(start, cluster)
    before = cluster.buffer.pool.ledger.retired
    metrics = cluster.step()
    assert metrics["async_dapo/ledger/retired"] == before + len(kept)
    assert metrics["async_dapo/calls/lost_loops"] >= len(kept)
    assert {uid for uid, _ in cluster.workers[0].loops_begun}.isdisjoint(kept)
