"""Shares by source in whole runs on virtual time: exact in each step, also over a restart."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from recipe.async_dapo.config.options import FilterConfig
from recipe.async_dapo.config.values import BALANCED, ConfigError, RolloutStrategy
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo.extensions.shares.prompts import SharedSource, order
from recipe.async_dapo.rollout.manager import make_group
from recipe.async_dapo.training.replay_buffer import RoundReplayBuffer

from ....support.simulated_cluster import Cluster, resumed
from ....support.simulated_options import STRATEGIES, options
from ....support.simulated_worker import Task

EASY, HARD = "easy", "a/hard"
DATA = [HARD if row % 3 == 0 else EASY for row in range(30)]
SHARES = {EASY: 1.0, HARD: 1.0}


class MixedCluster(Cluster):
    """Its data are rows of two sources; those of the second are long."""

    sources: Sequence[str] = DATA
    seed = 0

    def _make_buffer(self) -> RoundReplayBuffer:
        self.picked: list[int] = []
        self.source_of: dict[str, str] = {}
        buffer = RoundReplayBuffer(self.options, self._draw)
        if isinstance(buffer.source, SharedSource):
            buffer.source.begin_with(self)
        return buffer

    def pick(self, rows: Sequence[int]) -> list[PromptGroup]:
        self.picked += rows
        named = [{"uid": f"group-{self.num_drawn + k}", "index": row} for k, row in enumerate(rows)]
        self.num_drawn += len(rows)
        self.source_of |= {row["uid"]: DATA[row["index"]] for row in named}
        return [
            make_group(row | {"data_source": DATA[row["index"]]}, n=self.options.rollout_n, step=self.step_number)
            for row in named
        ]


def task(*, valid: bool = True) -> Task:
    """Long answers to rows of the second source, of which every other group is filtered, or each."""

    def metric_of(prompt_ids: list[int]) -> float:
        is_mixed = DATA[prompt_ids[0]] == EASY or (valid and prompt_ids[0] % 2 == 0)
        return float(is_mixed and prompt_ids[1] == 0)

    return Task(length_of=lambda ids: 4 + ids[1] + (40 if DATA[ids[0]] == HARD else ids[0]), metric_of=metric_of)


def opts(**changes: Any) -> Any:
    defaults: dict[str, Any] = {
        "target_valid_groups": 4,
        "sources": SHARES,
        "over_sampling_batch_size": "auto",
        "max_concurrent_prompts": 8,
        "extensions": ("shares",),
    }
    return options(**defaults | changes)


def trained(cluster: MixedCluster, steps: int) -> list[Counter[str]]:
    """Of each source, in each of the next steps."""
    found = []
    for _ in range(steps):
        before = len(cluster.trained)
        cluster.step()
        found.append(Counter(cluster.source_of[uid] for uid in cluster.trained[before:]))
    return found


@pytest.mark.slow
def test_a_share_that_is_rounded_down_begins_no_group_that_would_be_too_old_when_it_is_its_turn(start) -> None:
    """A third of four groups is one in every step: while answers of the other source are long, two are begun."""
    strategy, rule = RolloutStrategy.PARTIAL, StopRuleName.FIRST_COMPLETED
    shares = {EASY: 1.0, HARD: 2.0}
    settings = opts(sources=shares, rollout_strategy=strategy, stop_rule=rule, max_staleness=1)
    cluster = start(settings, MixedCluster, task=task())
    assert trained(cluster, 8) == [{EASY: 1, HARD: 3}] * 8
    assert cluster.buffer.pool.ledger.retired == 0


@pytest.mark.slow
def test_a_tiny_share_that_is_rarely_valid_may_take_as_many_prompts_as_a_batch_has_times_the_limit(start) -> None:
    """One group in ten of the second source is valid: three batches of its own share would be six prompts."""
    rare = replace(task(), metric_of=lambda ids: float(ids[1] == 0 and (DATA[ids[0]] == EASY or ids[0] % 10 == 0)))
    shares, limit = {EASY: 7.0, HARD: 1.0}, FilterConfig(metric="acc", max_num_gen_batches=3)
    cluster = start(opts(sources=shares, target_valid_groups=8, filter=limit), MixedCluster, task=rare)
    assert trained(cluster, 4) == [{EASY: 7, HARD: 1}] * 4


@pytest.mark.slow
@STRATEGIES
@pytest.mark.parametrize("rule", list(StopRuleName))
def test_each_step_has_the_shares_whatever_ends_first(start, strategy: RolloutStrategy, rule: StopRuleName) -> None:
    cluster = start(opts(rollout_strategy=strategy, stop_rule=rule, max_staleness=3), MixedCluster, task=task())
    assert trained(cluster, 5) == [{EASY: 2, HARD: 2}] * 5


def test_balanced_makes_up_for_what_rounding_leaves_over(start) -> None:
    strategy, rule = RolloutStrategy.PARTIAL, StopRuleName.FIRST_COMPLETED
    cluster = start(opts(sources=BALANCED, rollout_strategy=strategy, stop_rule=rule), MixedCluster, task=task())
    assert sum(trained(cluster, 6), Counter()) == {EASY: 16, HARD: 8}  # two thirds of 24


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_shares_and_the_next_prompts_of_each_source(start) -> None:
    settings = opts(rollout_strategy=RolloutStrategy.PARTIAL, stop_rule=StopRuleName.FIRST_COMPLETED)
    crashed = start(settings, MixedCluster, task=task())
    before = trained(crashed, 3)
    cluster = resumed(start, crashed)
    cluster.source_of = crashed.source_of
    assert before + trained(cluster, 3) == [{EASY: 2, HARD: 2}] * 6
    for name in SHARES:
        rows = [row for row, source in enumerate(DATA) if source == name]
        passes = [row for number in range(9) for row in order(rows, source=name, number=number, seed=0)]
        picked = [row for row in crashed.picked + cluster.picked if DATA[row] == name]
        assert picked == passes[: len(picked)], "prompts were left out, or drawn again"


def test_the_log_says_once_that_groups_of_a_source_without_a_share_wait(start, caplog) -> None:
    kept = {"rollout_strategy": RolloutStrategy.PARTIAL, "stop_rule": StopRuleName.FIRST_COMPLETED}
    crashed = start(opts(**kept), MixedCluster, task=task())
    trained(crashed, 3)
    held = crashed.buffer.pool.available[HARD]
    crashed.options = opts(sources={EASY: 1.0}, **kept)
    with caplog.at_level("INFO"):
        cluster = resumed(start, crashed)
        cluster.source_of = crashed.source_of
        assert trained(cluster, 3) == [{EASY: 4}] * 3
    said = [line for line in caplog.messages if "wait until they have one" in line]
    assert len(said) == 1 and said[0].endswith(f"{{'{HARD}': {held.certain + held.open}}}")


def test_a_source_that_is_never_valid_ends_the_run_in_a_sentence_that_names_it(start) -> None:
    cluster = start(
        opts(filter=FilterConfig(metric="acc", max_num_gen_batches=3)), MixedCluster, task=task(valid=False)
    )
    with pytest.raises(ConfigError, match=r"max_num_gen_batches=3: of the data source 'a/hard', it drew 3 batches and"):
        cluster.step()


def test_a_source_whose_rewards_all_fail_ends_the_run_though_others_do_well(start) -> None:
    whole = task()
    failing = replace(whole, metric_of=lambda ids: KeyError("code") if DATA[ids[0]] == HARD else whole.metric_of(ids))
    strategy, rule = RolloutStrategy.PARTIAL, StopRuleName.FIRST_COMPLETED
    cluster = start(opts(rollout_strategy=strategy, stop_rule=rule), MixedCluster, task=failing)
    with pytest.raises(RuntimeError, match="trajectories failed, and each ends a group"):
        cluster.step()
    assert len(cluster.picked) < 200
