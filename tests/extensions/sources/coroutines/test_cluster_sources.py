"""The account of each source in whole runs on virtual time, as metrics, and over a restart."""

from collections import Counter
from typing import Any

import pytest

from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo.extensions.sources.accounts import METRICS
from recipe.async_dapo.record.keys import LEDGER, SOURCE, STALENESS_MEAN
from recipe.async_dapo.rollout.manager import make_group

from ....support.simulated_cluster import Cluster, resumed
from ....support.simulated_options import STRATEGIES, options
from ....support.simulated_worker import random_task

NAMES = ("easy", "a/hard")


class Mixed(Cluster):
    """Every third prompt is of the second source."""

    def _draw(self, count: int) -> list[PromptGroup]:
        rows = [group.prompt | {"uid": group.uid, "data_source": NAMES[0]} for group in super()._draw(count)]
        for row in rows:
            row["data_source"] = NAMES[row["index"] % 3 == 0]
        return [make_group(row, n=self.options.rollout_n, step=self.step_number) for row in rows]


def opts(strategy: RolloutStrategy = RolloutStrategy.PARTIAL, **changes: Any) -> Any:
    rule = StopRuleName.FIFO if strategy is RolloutStrategy.DISCARD else StopRuleName.FIRST_COMPLETED
    defaults = {"rollout_strategy": strategy, "stop_rule": rule, "extensions": ("sources",), "max_staleness": 2}
    return options(**defaults | changes)


def check(cluster: Cluster, step: dict[str, float]) -> None:
    """The sources are the ledger, and the trained groups theirs."""
    for term in ("drawn", "trained", "filtered", "failed", "retired"):
        assert sum(step[f"{SOURCE}{name}/{term}"] for name in NAMES) == step[LEDGER + term], term
    held = sum(step[LEDGER + term] for term in ("waiting", "buffered"))
    assert sum(step[f"{SOURCE}{name}/waiting"] for name in NAMES) == held
    trained = Counter(NAMES[int(uid.removeprefix("group-")) % 3 == 0] for uid in cluster.trained if "group" in uid)
    for name in NAMES:
        assert step[f"{SOURCE}{name}/trained"] >= trained[name]
    staleness = [step.get(f"{SOURCE}{name}/staleness") for name in NAMES]
    if None not in staleness:
        assert min(staleness) <= step[STALENESS_MEAN] + 1e-9 and step[STALENESS_MEAN] <= max(staleness) + 1e-9


@pytest.mark.slow
@STRATEGIES
def test_in_each_step_the_sources_are_the_ledger(start, strategy: RolloutStrategy) -> None:
    cluster = start(opts(strategy), Mixed, task=random_task(1))
    steps = []
    for _ in range(6):
        steps.append(cluster.step())
        check(cluster, steps[-1])
    named = {f"{SOURCE}{name}/{metric}" for name in NAMES for metric in METRICS}
    assert named == {key for step in steps for key in step if key.startswith(SOURCE)}


def test_a_run_goes_on_with_its_accounts_and_begins_them_where_a_checkpoint_has_none(start) -> None:
    crashed = start(opts(), Mixed, task=random_task(2))
    before = crashed.steps(3)[-1]
    cluster = resumed(start, crashed)
    after = cluster.step()
    check(cluster, after)
    assert all(after[f"{SOURCE}{name}/drawn"] >= before[f"{SOURCE}{name}/drawn"] for name in NAMES)
    without = start(opts(extensions=()), Mixed, task=random_task(2))
    assert not [key for step in without.steps(3) for key in step if key.startswith(SOURCE)]
    cluster = resumed(lambda _, kind, **about: start(opts(), kind, **about), without)
    step = cluster.step()
    parts = sum(step[f"{SOURCE}{name}/trained"] for name in NAMES)
    assert parts == 2 and step[LEDGER + "trained"] == 8


def test_a_run_of_one_source_says_nothing_of_it(start) -> None:
    cluster = start(opts(), task=random_task(1))
    assert not [key for step in cluster.steps(3) for key in step if key.startswith(SOURCE)]


@pytest.mark.parametrize("pass_rate", [0.0, 1.0])
def test_the_pass_rate_is_the_mean_of_the_metric(start, pass_rate: float) -> None:
    task = random_task(3)
    task.metric_of = lambda ids: float(ids[1] == 0) if ids[0] % 3 else pass_rate
    step = start(opts(), Mixed, task=task).steps(3)[-1]
    assert step.get(f"{SOURCE}{NAMES[1]}/pass_rate", pass_rate) == pass_rate
    assert step[f"{SOURCE}{NAMES[0]}/pass_rate"] == pytest.approx(1 / 3)
