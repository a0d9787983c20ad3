"""Prompts chosen by history in whole runs on virtual time: a data set visited again and again, and a restart."""

from dataclasses import replace
from typing import Any

import pytest

from recipe.async_dapo.config.options import Selection
from recipe.async_dapo.config.values import RolloutStrategy, SelectBy
from recipe.async_dapo.core.ledger import LedgerError
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo.extensions.history.declared import DECLARED
from recipe.async_dapo.extensions.history.source import HistorySource
from recipe.async_dapo.record.keys import PREFIX
from recipe.async_dapo.rollout.manager import make_group

from ....support.simulated_cluster import Cluster, resumed
from ....support.simulated_options import options
from ....support.simulated_worker import Task

DATA_SET = 24
UNIFORM = Selection(by=SelectBy.UNIFORM, defer_steps=5)
BY_HISTORY = Selection(by=SelectBy.HISTORY, forgetting=0.5, exploration=0.1, defer_steps=20)


class Revisited(Cluster):
    """Draws the same prompts again and again; two of three are hopeless."""

    def _draw(self, count: int) -> list[PromptGroup]:
        groups = super()._draw(count)
        rows = [{"uid": group.uid, "index": group.prompt["index"] % DATA_SET} for group in groups]
        return [make_group(row, n=self.options.rollout_n, step=self.step_number) for row in rows]

    @property
    def source(self) -> HistorySource:
        assert isinstance(self.buffer.source, HistorySource)
        return self.buffer.source


def begun(start: Any, selection: Selection | None) -> Revisited:
    """
    Args:
        selection: None: uniform, without the extension.
    """
    opts = options(
        rollout_n=4,
        rollout_strategy=RolloutStrategy.PARTIAL,
        stop_rule=StopRuleName.FIRST_COMPLETED,
        **({} if selection is None else {"selection": selection, "extensions": ("history",)}),
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
    without = filtered_per_trained(begun(start, None), warmup=12, steps=30)
    by_history = begun(start, BY_HISTORY)
    assert filtered_per_trained(by_history, warmup=12, steps=30) <= 0.5 * without
    counts = by_history.source.history.counts
    assert len(counts) == DATA_SET
    assert min(count.visits for count in counts.values()) >= 2, "a prompt was shut out"


def with_deferred_prompts(start: Any, selection: Selection) -> Revisited:
    cluster = begun(start, selection)
    while not cluster.source.deferred:
        metrics = cluster.step()
        assert {PREFIX + name for name in DECLARED.metrics} <= metrics.keys() and cluster.step_number < 40
    assert metrics[PREFIX + "selection/skipped_prompts"] > 0
    assert metrics[PREFIX + "ledger/deferred"] == len(cluster.source.deferred)
    return cluster


def test_given_a_restart_then_history_and_deferred_prompts_go_on_where_they_were(start) -> None:
    selection = replace(BY_HISTORY, defer_steps=5)
    cluster = with_deferred_prompts(start, selection)
    again = resumed(start, cluster)
    assert again.source.history.counts == cluster.source.history.counts
    assert again.source.deferred == cluster.source.deferred
    due = {one.group.uid for one in again.source.deferred}
    assert all(one.until <= cluster.step_number + selection.defer_steps for one in again.source.deferred)
    for _ in range(selection.defer_steps + 1):
        again.step()
    assert not due & {one.group.uid for one in again.source.deferred}, "what was deferred has not come back"


@pytest.mark.slow
def test_given_a_restart_that_selects_by_no_history_then_deferred_prompts_still_come_when_they_are_due(start) -> None:
    cluster = with_deferred_prompts(start, replace(BY_HISTORY, defer_steps=5))
    cluster.options = replace(cluster.options, selection=UNIFORM, extensions=())
    again = resumed(start, cluster)
    counts = dict(again.source.history.counts)
    assert again.source.deferred == cluster.source.deferred
    for _ in range(7):
        metrics = again.step()
        assert metrics[PREFIX + "selection/skipped_prompts"] == 0
    assert not again.source.deferred and again.source.history.counts == counts, "a history was asked for no more"
    assert resumed(start, again).source.history.counts == counts, "what is known was lost"


def test_given_a_checkpoint_whose_deferred_prompts_are_lost_when_resumed_then_the_ledger_does_not_close(start) -> None:
    cluster = with_deferred_prompts(start, BY_HISTORY)
    saved = replace(cluster.buffer.state(), extensions={})
    with pytest.raises(LedgerError, match="ledger does not close"):
        start(cluster.options, Revisited, task=cluster.task).buffer.restore(saved)
