"""Whole steps on virtual time, for every strategy, stop rule and fault."""

from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest

from recipe.async_dapo.config.options import FilterConfig
from recipe.async_dapo.config.values import Auto, RolloutStrategy
from recipe.async_dapo.core.leases import Requested, Returned
from recipe.async_dapo.core.stop_rules import StopRuleName

from ..support.simulated_cluster import resumed
from ..support.simulated_options import STRATEGIES, options
from ..support.simulated_worker import Task, failing_task, random_task

COMBINATIONS = list(product(RolloutStrategy, StopRuleName))
MORE_SEEDS = [pytest.param(seed, marks=pytest.mark.nightly) for seed in range(24, 1100)]


@pytest.mark.parametrize("seed", range(3))
def test_given_drain_and_discard_without_filter_then_each_step_trains_on_the_next_prompts(start, seed) -> None:
    """As verl's sync mode does, which `test_same_learning.py` compares."""
    batch = 4
    opts = options(
        rollout_strategy=RolloutStrategy.DISCARD,
        stop_rule=StopRuleName.DRAIN,
        filter=FilterConfig(metric=None, max_num_gen_batches=0),
        target_valid_groups=batch,
        over_sampling_batch_size=batch,
    )
    cluster = start(opts, task=random_task(seed))
    for step in range(1, 5):
        cluster.step()
        assert set(cluster.trained) == {f"group-{k}" for k in range(step * batch)}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [each for each in RolloutStrategy if each is not RolloutStrategy.DISCARD])
def test_given_no_old_tokens_then_each_step_is_that_of_discard(start, strategy) -> None:
    """Filtered groups, too, start again where `fifo` did not wait for them: the longer ones have been interrupted."""

    def steps(**changes: Any) -> list[dict[str, float]]:
        cluster = start(options(over_sampling_batch_size=9, max_concurrent_prompts=4, **changes), task=random_task(1))
        return cluster.steps(8)

    own, discards = steps(rollout_strategy=strategy, max_staleness=0), steps(rollout_strategy=RolloutStrategy.DISCARD)
    assert own == discards
    assert sum(step["async_dapo/early_stop/redrawn_groups"] for step in own) > 0


@pytest.mark.parametrize("seed", [*range(24), *MORE_SEEDS])
def test_given_any_options_and_any_run_of_events_then_no_token_is_lost_or_repeated(start, seed) -> None:
    """Tools, stops, resumptions, retirements, failures, deaths, broken connections, validations and restarts from a
    checkpoint, in any order; none makes a round wait for ever.

    `Cluster.check` compares every trained trajectory with the tokens its engine would have sampled in one go.
    """
    random = Random(seed)
    strategy, stop_rule = COMBINATIONS[seed % len(COMBINATIONS)]
    opts = options(
        rollout_strategy=strategy,
        stop_rule=stop_rule,
        max_staleness=random.choice([None, 0, 1, 2, 4]),
        max_loads_per_server=random.choice([1, 2, 3, 8]),
        max_concurrent_prompts=random.choice([1, 2, 4]),
        num_workers=random.choice([1, 2, 3]),
        rollout_pool_size=random.choice([None, Auto.AUTO, 1, 2, 5, 9, 60]),
        over_sampling_batch_size=random.choice([1, 2, 5, Auto.AUTO]),
        target_valid_groups=random.choice([1, 2, 3]),
        max_partial_share=random.choice([None, 0.2]),
        max_tokens_per_round=random.choice([None, 6]) if strategy is RolloutStrategy.PARTIAL else None,
    )
    latency_s = random.choice([0.0, 0.01, lambda method: random.choice([0.0, 0.01, 0.3, random.uniform(0, 3)])])
    task = replace(
        random.choice([failing_task, random_task])(seed),
        tool_s=random.choice([0.0, 0.5, 20.0]),
        turn_tok=random.choice([None, 2, 8]),
        call_s=lambda prompt_ids, done_tok: Random(f"{seed} {prompt_ids} {done_tok}").choice([0.0, 0.5, 5.0, 60.0]),
        keeps_state=random.random() < 0.3,
    )
    training_s = random.choice([0.0, 1.0, 30.0])
    cluster = start(opts, task=task, num_servers=random.choice([1, 2, 3]), latency_s=latency_s)
    for _ in range(6):
        living = [handle for handle in cluster.server_handles if not handle.is_dead]
        if random.random() < 0.2 and len(living) > 1:
            cluster.loop.call_later(random.choice([0.0, 0.015, random.uniform(0, 40)]), random.choice(living).kill)
        elif random.random() < 0.2:
            cluster.loop.call_later(random.uniform(0, 20), random.choice(living).cut_off, 0.5)
        with cluster.engines.naming_lost_engines():
            cluster.sample()
            cluster.run_for(training_s)
            cluster.update_weights()
        if random.random() < 0.3:
            assert len({key.split("_")[0] for key in cluster.validate(3).keys}) <= 3
        if random.random() < 0.3:
            cluster = resumed(start, cluster)
    cluster.run_for(40.0)
    cluster.step()
    assert not any(replica.servers[0].is_dead for replica in cluster.engines.replicas)
    ledger = cluster.buffer.pool.check_ledger()
    assert ledger["trained"] == 7 * opts.target_valid_groups and ledger["drawn"] >= cluster.num_drawn


@pytest.mark.parametrize("strategy", [RolloutStrategy.DISCARD, RolloutStrategy.CONSISTENT])
def test_given_a_checkpoint_with_interrupted_groups_when_the_strategy_interrupts_none_then_they_begin_anew(
    start, strategy
) -> None:
    """No group that begins under one policy goes on under another."""
    partial = options(rollout_strategy=RolloutStrategy.PARTIAL, stop_rule=StopRuleName.FIRST_COMPLETED)
    cluster = start(partial, task=random_task(0))
    while not (interrupted := cluster.buffer.pool.buffered) or cluster.buffer.pool.carried:
        cluster.step()
    cluster.options = replace(partial, rollout_strategy=strategy)
    cluster = resumed(start, cluster)
    retired = cluster.buffer.pool.ledger.retired
    first, *_ = metrics = cluster.steps(6)
    assert not any(step["async_dapo/partial/resumed_groups"] for step in metrics)
    assert first["async_dapo/ledger/retired"] - retired == len(interrupted)
    assert first["async_dapo/tokens/discarded"] >= sum(group.generated_tok for group in interrupted)


def test_given_partial_rollout_when_a_long_response_is_interrupted_again_and_again_then_it_is_trained_in_the_end(start):
    def length_of(prompt_ids: list[int]) -> int:
        return 60 if prompt_ids[0] == 0 else 6

    opts = options(rollout_strategy=RolloutStrategy.PARTIAL, stop_rule=StopRuleName.FIRST_COMPLETED)
    cluster = start(opts, task=Task(length_of))
    ages = []
    while "group-0" not in cluster.trained:
        metrics = cluster.step()
        ages.append(metrics["async_dapo/age/max"])
    assert len(ages) > 2 and ages[-1] == len(ages) - 1


@STRATEGIES
def test_given_no_latency_then_the_engines_are_idle_at_the_very_moment_of_the_last_valid_report(start, strategy):
    cluster = start(options(rollout_strategy=strategy, stop_rule=StopRuleName.FIRST_COMPLETED), latency_s=0.0)
    for _ in range(4):
        assert cluster.step()["async_dapo/early_stop/stop_latency_s"] == 0.0


def test_given_a_limit_on_tokens_a_round_when_validated_then_every_answer_is_whole(start) -> None:
    limited = options(rollout_strategy=RolloutStrategy.PARTIAL, max_tokens_per_round=2)
    cluster = start(limited, task=Task(lambda prompt_ids: 20))
    cluster.manager.config.actor_rollout_ref.rollout.val_kwargs.n = n = 2
    assert len(cluster.validate(6).keys) == 6 * n


def test_given_more_answers_a_prompt_than_in_training_when_validated_then_no_more_requests_are_held(start) -> None:
    cluster = start(options())
    cluster.manager.config.actor_rollout_ref.rollout.val_kwargs.n = n = 8
    held: set[str] = set()
    most = 0
    exchange = cluster.balancer.exchange

    async def counted(requests: list[Requested], returned: list[Returned]) -> dict[str, str | None]:
        nonlocal most
        held.difference_update(one.lease_id for one in returned)
        held.update(one.lease_id for one in requests)
        most = max(most, len(held))
        return await exchange(requests, returned)

    cluster.balancer.exchange = counted
    assert len(cluster.validate(6).keys) == 6 * n
    lanes, limit = cluster.options.num_workers * cluster.options.max_concurrent_prompts, 12
    assert cluster.options.slots_hold == limit
    assert n < most <= limit + n - 1 < lanes * n
