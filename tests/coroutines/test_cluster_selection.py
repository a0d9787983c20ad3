"""Prompts chosen by history in whole runs on virtual time: a data set visited again and again, and a restart."""

from dataclasses import replace
from typing import Any

import pytest

from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo.core.prompt_history import SelectBy, Selection
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo.rollout.manager import make_group

from ..support.simulated_cluster import Cluster, resumed
from ..support.simulated_options import options
from ..support.simulated_worker import Task

DATA_SET = 24
BY_HISTORY = Selection(by=SelectBy.HISTORY, forgetting=0.5, exploration=0.1, defer_steps=20)
UNIFORM = replace(BY_HISTORY, by=SelectBy.UNIFORM)


class Revisited(Cluster):
    """Draws the same prompts again and again; two of three are hopeless."""

    def _draw(self, count: int) -> list[PromptGroup]:
        groups = super()._draw(count)
        rows = [{"uid": group.uid, "index": group.prompt["index"] % DATA_SET} for group in groups]
        return [make_group(row, n=self.options.rollout_n, step=self.step_number) for row in rows]


def begun(start: Any, selection: Selection) -> Revisited:
    opts = options(
        rollout_n=4,
        rollout_strategy=RolloutStrategy.PARTIAL,
        stop_rule=StopRuleName.FIRST_COMPLETED,
        selection=selection,
    )
    task = Task(metric_of=lambda prompt_ids: float(prompt_ids[0] % 3 == 0 and prompt_ids[1] % 2))
    return start(opts, Revisited, task=task)


def filtered_per_trained(cluster: Revisited, *, warmup: int, steps: int) -> float:
    ledgers = cluster.steps(warmup + steps)
    first, last = ledgers[warmup - 1], ledgers[-1]
    filtered, trained = (
        last[f"async_dapo/ledger/{t}"] - first[f"async_dapo/ledger/{t}"] for t in ("filtered", "trained")
    )
    return filtered / trained


@pytest.mark.slow
def test_given_a_data_set_visited_again_then_at_most_half_as_many_groups_are_filtered_and_every_prompt_is_drawn(start):
    uniform = begun(start, UNIFORM)
    without = filtered_per_trained(uniform, warmup=12, steps=30)
    by_history = begun(start, BY_HISTORY)
    assert filtered_per_trained(by_history, warmup=12, steps=30) <= 0.5 * without
    history = by_history.buffer.history
    assert len(history) == DATA_SET
    assert min(count.visits for count in history.state().values()) >= 2, "a prompt was shut out"
    assert len(uniform.buffer.history) == 0, "nothing is remembered unless it is asked for"


def test_given_a_restart_then_history_and_deferred_prompts_go_on_where_they_were(start) -> None:
    selection = replace(BY_HISTORY, defer_steps=5)
    cluster = begun(start, selection)
    while not (deferred := cluster.buffer.pool.state().deferred):
        cluster.step()
    assert cluster.step_number < 40
    again = resumed(start, cluster)
    assert again.buffer.history.state() == cluster.buffer.history.state()
    due = {group.uid for group in again.buffer.pool.state().deferred}
    assert due == {group.uid for group in deferred}
    assert all(group.deferred_until <= cluster.step_number + selection.defer_steps for group in deferred)
    for _ in range(selection.defer_steps + 1):
        again.step()
    assert not due & {group.uid for group in again.buffer.pool.state().deferred}, "what was deferred has not come back"
