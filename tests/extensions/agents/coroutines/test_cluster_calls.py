"""Calls and scores on a simulated cluster: made once, over stops, workers and checkpoints, and waited for by others."""

import asyncio
import re
from collections import Counter
from typing import Any

import pytest

from recipe.async_dapo.config.values import Auto, RolloutStrategy
from recipe.async_dapo.extensions.agents.call_runner import CallRunner
from recipe.async_dapo.extensions.agents.journal import Journal
from recipe.async_dapo.training.checkpoints import from_frames, to_frames

from ....support.simulated_options import options
from ....support.simulated_worker import Task


@pytest.mark.parametrize("pool_size", [None, Auto.AUTO])
def test_given_rewards_that_take_longer_than_a_round_then_each_trajectory_is_scored_once_and_a_checkpoint_has_the_score(
    start, pool_size
) -> None:
    """Their groups go on in any worker; what has come to an end meanwhile is in the checkpoint."""
    scored: Counter[tuple[int, ...]] = Counter()

    def metric_of(prompt_ids: list[int]) -> float:
        scored[tuple(prompt_ids)] += 1
        return float(sum(prompt_ids) % 2)

    slow = Task(metric_of=metric_of, scoring_s=60.0)
    opts = options(rollout_strategy=RolloutStrategy.PARTIAL, rollout_pool_size=pool_size, extensions=("agents",))
    cluster = start(opts, task=slow)
    carried = [cluster.step()["async_dapo/calls/carried"] for _ in range(6)]
    while not carried[-1] and len(carried) < 20:  # a checkpoint of a round whose stop has interrupted scores
        carried.append(cluster.step()["async_dapo/calls/carried"])
    assert carried[-1] > 0 and set(scored.values()) == {1}
    cluster.run_for(60.0)
    saved = from_frames(to_frames(cluster.buffer.state())).pool.buffered
    calls = [call for group in saved for one in group.trajectories for call in Journal.of(one).calls.values()]
    assert calls and all(call.result is not None for call in calls)


def test_given_discard_when_the_stop_interrupts_calls_then_they_end_and_those_of_the_next_attempt_are_others(
    start, monkeypatch
) -> None:
    made: list[str] = []
    make = CallRunner._make

    async def noted(runner: CallRunner, recorder: Any, call: Any, work: Any) -> None:
        made.append(call.call_id)
        await make(runner, recorder, call, work)

    monkeypatch.setattr(CallRunner, "_make", noted)
    task = Task(
        length_of=lambda prompt_ids: 10,
        tool_s=1.0,
        turn_tok=5,
        call_s=lambda prompt_ids, done_tok: 1000.0 if prompt_ids[0] > 1 else 0.0,
    )
    cluster = start(options(), task=task)
    cluster.step()
    tasks = [task.get_name() for task in asyncio.all_tasks(cluster.loop)]
    assert not [name for name in tasks if name.startswith("call ")]
    cluster.step()
    first_calls = Counter(re.split("[@/]", name)[0] for name in made if name.split("/")[2] == "0")
    assert first_calls["group-2"] == 2 * cluster.options.rollout_n, "made in both steps"
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(("max_staleness", "most"), [(None, 15), (0, 6)])
def test_given_trajectories_that_wait_for_tools_then_others_take_their_places_as_far_as_staleness_allows(
    start, max_staleness: int | None, most: int
) -> None:
    """Five groups of three are held, and three trajectories may generate at once."""
    opts = options(
        rollout_strategy=RolloutStrategy.PARTIAL,
        rollout_pool_size=3,
        num_workers=1,
        max_staleness=max_staleness,
        extensions=("agents",),
    )
    cluster = start(opts, task=Task(length_of=lambda prompt_ids: 10, tool_s=100.0))
    metrics = cluster.step()
    assert metrics["async_dapo/calls/waiting_max"] == most
    assert metrics["async_dapo/load_balancer/inflight/max"] == 3
    assert metrics["async_dapo/round/rollout_s"] < 150, "one group after another would take twice the tool's time"
    turns = {name: metrics[f"async_dapo/turns/{name}"] for name in ("mean", "tokens/mean")}
    assert turns == {"mean": 1, "tokens/mean": 10}
    assert metrics["async_dapo/turns/calls_s"] == pytest.approx(100)
