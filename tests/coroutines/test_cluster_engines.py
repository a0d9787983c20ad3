"""Whole runs on virtual time while engines die or hang outside a round: in training, in the weight update, asleep."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.engines.engine_requests import EnginesUnavailable
from recipe.async_dapo.runtime.logs import last_line
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from ..support.simulated_cluster import Cluster
from ..support.simulated_options import STRATEGIES, options
from ..support.simulated_worker import Task


def servers_of(cluster: Cluster) -> list[str]:
    return cluster.loop.run_until_complete(cluster.balancer.get_status())["registered_handles"]


def begin(cluster: Cluster) -> None:
    """The trainer's start, when engines are there."""
    trainer: Any = SimpleNamespace(options=cluster.options, checkpoint_manager=cluster.engines, global_steps=0)
    AsyncDAPOTrainer.on_init_end(trainer)


@STRATEGIES
def test_given_an_engine_that_dies_before_the_first_weights_then_training_begins_without_it(start, strategy) -> None:
    cluster = start(options(rollout_strategy=strategy))
    cluster.server_handles[1].kill()
    begin(cluster)
    assert cluster.step()["async_dapo/load_balancer/lost_servers"] == 1
    assert servers_of(cluster) == ["server-0"]


@pytest.mark.parametrize("moment", ["before the first weights", "while the actor trains", "behind the weights"])
@STRATEGIES
def test_given_the_only_engine_when_it_dies_then_what_comes_next_ends_at_once_and_names_it(
    start, strategy, moment
) -> None:
    cluster = start(options(rollout_strategy=strategy), num_servers=1)
    comes_next, naming = partial(begin, cluster), nullcontext()
    if moment != "before the first weights":
        cluster.sample()
        comes_next = cluster.update_weights
    if moment == "behind the weights":
        cluster.engines.update_weights(cluster.step_number)
        comes_next, naming = cluster.manager.open_engines, cluster.engines.naming_lost_engines()
    cluster.server_handles[0].kill()
    before_s = cluster.loop.time()
    with (
        pytest.raises(EnginesUnavailable, match=r"no engine is left: engine 0 died: .*trainer\.resume_mode=auto"),
        naming,
    ):
        comes_next()
    assert cluster.loop.time() - before_s < 1


def test_given_the_only_engine_when_it_dies_by_an_exception_then_the_last_line_has_it_and_blames_no_memory(
    start,
) -> None:
    cluster = start(options(), num_servers=1)
    cluster.step()
    [replica] = cluster.engines.replicas
    replica.processes = [SimpleNamespace(end=lambda *, timeout_s: "ValueError: no such layer")]

    async def ended(call: Callable[[Any], str]) -> str:
        return call(None)

    replica.workers_beside = lambda: [SimpleNamespace(__ray_call__=SimpleNamespace(remote=ended))]
    cluster.server_handles[0].kill()
    with pytest.raises(EnginesUnavailable) as error:
        cluster.step()
    line = last_line("EnginesUnavailable", str(error.value))
    assert "engine 0 died: ValueError: no such layer. Start the command again" in line and "memory" not in line


def test_given_an_engine_that_never_sleeps_then_it_is_ended_and_steps_go_on(start) -> None:
    cluster = start(options(rollout_strategy=RolloutStrategy.PARTIAL))
    cluster.step()
    cluster.servers[1].hangs = True
    before_s = cluster.loop.time()
    cluster.sample()
    assert cluster.server_handles[1].is_dead
    assert cluster.loop.time() - before_s < 30 + cluster.options.engine_timeout_s
    cluster.update_weights()
    cluster.step()
    assert servers_of(cluster) == ["server-0"]


def test_given_an_engine_that_never_stops_then_it_is_ended_and_its_requests_are_whole_on_the_others(start) -> None:
    task = Task(lambda prompt_ids: 5 + 200 * (prompt_ids[0] == 1))
    cluster = start(
        options(rollout_strategy=RolloutStrategy.PARTIAL, stop_rule=StopRuleName.FIRST_COMPLETED), task=task
    )
    cluster.servers[1].hangs = True
    cluster.step()
    assert servers_of(cluster) == ["server-0"]
    cluster.steps(10)
    assert "group-1" in cluster.trained


def test_given_a_training_worker_that_never_ends_the_update_then_the_error_names_its_rank(start) -> None:
    cluster = start(options())
    cluster.sample()
    cluster.training_workers.hanging = {1}
    with pytest.raises(TimeoutError, match=r"weight update 1: training ranks \[1\] .* 900 s, 15 x async_dapo"):
        cluster.update_weights()
