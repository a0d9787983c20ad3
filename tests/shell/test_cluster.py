"""Whole steps on virtual time, for every strategy, stop rule and fault."""

import asyncio
import pickle
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from recipe.async_dapo import store
from recipe.async_dapo.config import AsyncDAPOConfig, ConfigError, FilterConfig, OnRewardError, RewardConfig, RolloutStrategy
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.manager import RolloutError

from .cluster import Cluster, Task, options
from .simulation import _end_all

STRATEGIES = pytest.mark.parametrize("strategy", list(RolloutStrategy))
STOP_RULES = pytest.mark.parametrize("stop_rule", list(StopRuleName))


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    clusters: list[Cluster] = []

    def start_cluster(opts: AsyncDAPOConfig, **arguments: Any) -> Cluster:
        clusters.append(Cluster(monkeypatch, opts, **arguments))
        return clusters[-1]

    yield start_cluster
    monkeypatch.undo()
    for cluster in clusters:
        asyncio.set_event_loop(cluster.loop)
        _end_all(cluster.loop)


def random_task(seed: int) -> Task:
    """Long-tailed lengths and metrics by chance, the same for a trajectory whenever it is asked."""

    def length_of(prompt_ids: list[int]) -> int:
        return 1 + int(Random(f"{seed} {prompt_ids}").paretovariate(1.0)) % 200

    def metric_of(prompt_ids: list[int]) -> float:
        return float(Random(f"metric {seed} {prompt_ids}").random() < 0.5)

    return Task(length_of, metric_of, scoring_s=Random(seed).choice([0.0, 0.3, 5.0]))


@STRATEGIES
@STOP_RULES
@pytest.mark.parametrize("pool_size", [None, 4])
@pytest.mark.parametrize("seed", range(3))
def test_given_any_strategy_and_rule_when_steps_are_run_then_all_invariants_hold(
    start, strategy, stop_rule, pool_size, seed
) -> None:
    opts = options(rollout_strategy=strategy, stop_rule=stop_rule, rollout_pool_size=pool_size, max_staleness=3)
    cluster = start(opts, task=random_task(seed))
    for _ in range(6):
        cluster.step()
    assert len(cluster.trained) == 12


def failing_task(seed: int) -> Task:
    """As `random_task`; some rewards raise."""
    task = random_task(seed)
    healthy = task.metric_of

    def metric_of(prompt_ids: list[int]) -> float | Exception:
        is_bad = Random(f"failure {seed} {prompt_ids}").random() < 0.1
        return ValueError("broken") if is_bad else healthy(prompt_ids)

    return Task(task.length_of, metric_of, task.scoring_s)


@STRATEGIES
@pytest.mark.parametrize("seed", range(6))
def test_given_failing_rewards_validation_and_checkpoints_when_steps_are_run_then_all_invariants_hold(
    start, strategy, seed
) -> None:
    random = Random(seed)
    opts = options(
        rollout_strategy=strategy,
        stop_rule=random.choice(list(StopRuleName)),
        max_staleness=random.choice([None, 0, 1, 3]),
        max_loads_per_server=random.choice([1, 3, 8]),
        max_concurrent_prompts=random.choice([1, 2, 4]),
        num_workers=random.choice([1, 3]),
    )
    cluster = start(opts, task=failing_task(seed))
    for _ in range(8):
        cluster.step()
        if random.random() < 0.4:
            assert len({key.split("_")[0] for key in cluster.validate(4).keys}) <= 4
        if random.random() < 0.4:
            cluster = resumed(start, cluster)
    ledger = cluster.buffer.pool.check_ledger()
    assert ledger["trained"] == 16 and ledger["drawn"] >= cluster.num_drawn


def resumed(start: Any, crashed: Cluster) -> Cluster:
    """A new cluster from a checkpoint of another; the engines are empty."""
    state = pickle.dumps(crashed.buffer.pool.state_dict(), protocol=5)
    cluster = start(crashed.options, task=crashed.task)
    cluster.buffer.pool.load_state_dict(pickle.loads(state))
    carried = cluster.buffer.pool.carried_uids
    rows = crashed.store.rows[store.TRAIN]
    cluster.store.rows[store.TRAIN] = {key: row for key, row in rows.items() if key.split("_")[0] in carried}
    cluster.step_number, cluster.num_drawn, cluster.trained = crashed.step_number, crashed.num_drawn, crashed.trained
    cluster.update_weights()
    return cluster


def test_given_partial_rollout_when_a_long_response_is_interrupted_again_and_again_then_it_is_trained_in_the_end(
    start,
) -> None:
    def length_of(prompt_ids: list[int]) -> int:
        return 60 if prompt_ids[0] == 0 else 6

    opts = options(rollout_strategy=RolloutStrategy.PARTIAL, stop_rule=StopRuleName.FIRST_COMPLETED)
    cluster = start(opts, task=Task(length_of))
    ages = []
    while "group-0" not in cluster.trained:
        metrics = cluster.step()
        ages.append(metrics["async_dapo/age/max"])
    assert len(ages) > 2 and ages[-1] == len(ages) - 1


def test_given_a_limit_of_tokens_a_round_then_long_responses_are_set_aside_and_finished_later(start) -> None:
    opts = options(
        rollout_strategy=RolloutStrategy.PARTIAL, stop_rule=StopRuleName.FIRST_COMPLETED, max_tokens_per_round=8
    )
    cluster = start(opts, task=random_task(1))
    for _ in range(6):
        assert cluster.step()["async_dapo/round/rollout_s"] < 100


def test_given_discard_and_first_completed_then_training_prefers_short_answers_and_the_metrics_show_it(start) -> None:
    opts = options(stop_rule=StopRuleName.FIRST_COMPLETED, over_sampling_batch_size=8, max_concurrent_prompts=4)
    biased = start(opts, task=random_task(3))
    for _ in range(10):
        metrics = biased.step()
    assert metrics["async_dapo/length/trained_to_dispatched"] < 0.8


@STRATEGIES
def test_given_no_latency_then_the_engines_are_idle_at_the_very_moment_of_the_last_valid_report(start, strategy) -> None:
    cluster = start(options(rollout_strategy=strategy, stop_rule=StopRuleName.FIRST_COMPLETED), latency_s=0.0)
    for _ in range(4):
        assert cluster.step()["async_dapo/early_stop/stop_latency_s"] == 0.0


def test_given_one_lane_when_a_group_runs_then_the_next_starts_only_when_it_has_ended_and_in_order(start) -> None:
    cluster = start(options(num_workers=1, max_concurrent_prompts=1))
    cluster.step()
    (worker,) = cluster.workers
    assert worker.max_active_groups == 1
    assert worker.started == [f"group-{k}" for k in range(len(worker.started))]


# ---- faults ----


@pytest.mark.parametrize("death_s", [0.0, 0.015, 3.0, 11.5])
@STRATEGIES
def test_given_a_server_that_dies_in_a_round_then_the_round_ends_on_the_others(start, strategy, death_s) -> None:
    cluster = start(options(rollout_strategy=strategy), task=random_task(4), num_servers=3)
    cluster.step()
    cluster.buffer.open_round(2)
    cluster.loop.call_later(death_s, cluster.server_handles[1].kill)
    batch, _ = cluster.buffer.sample(2, store.TRAIN, 2)
    assert len({key.split("_")[0] for key in batch.keys}) == 2
    cluster.run_for(1)
    assert set(cluster.balancer._table.inflight) == {"server-0", "server-2"}


def error_of_a_step(cluster: Cluster, kill: Any, *, after_s: float) -> tuple[str, float]:
    """The error that ends the step, and how long after the death it comes [s]."""
    cluster.step()
    started_s = cluster.loop.time()
    cluster.loop.call_later(after_s, kill)
    with pytest.raises(RolloutError) as raised:
        cluster.step()
    return str(raised.value), cluster.loop.time() - started_s - after_s


@pytest.mark.parametrize("after_s", [0.02, 2.0])
def test_given_all_servers_dead_then_the_step_ends_with_an_error_at_once(start, after_s) -> None:
    cluster = start(options())

    def kill() -> None:
        for handle in cluster.server_handles:
            handle.kill()

    message, waited_s = error_of_a_step(cluster, kill, after_s=after_s)
    assert "No available servers" in message and waited_s < 2


@pytest.mark.parametrize("part", ["coordinator_handle", "balancer_handle", "worker"])
@pytest.mark.parametrize("after_s", [0.005, 2.0])
def test_given_an_actor_that_dies_then_the_step_ends_with_an_error_at_once(start, part, after_s) -> None:
    cluster = start(options())
    handle = cluster.worker_handles[1] if part == "worker" else getattr(cluster, part)
    message, waited_s = error_of_a_step(cluster, handle.kill, after_s=after_s)
    assert "died" in message and waited_s < 30


def test_given_a_server_that_never_stops_then_the_step_ends_with_an_error_at_the_time_limit(start) -> None:
    cluster = start(options(stop_rule=StopRuleName.FIRST_COMPLETED), task=Task(lambda prompt_ids: 5 + 900 * (prompt_ids[0] == 1)))
    for server in cluster.servers:
        server._hangs = True
    with pytest.raises(RolloutError, match="stop_timeout_s=120"):
        cluster.step()
    assert cluster.loop.time() < 300


def test_given_an_engine_that_generates_for_ever_then_the_step_ends_with_an_error_at_the_round_limit(start) -> None:
    cluster = start(options(round_timeout_s=600.0), task=Task(lambda prompt_ids: 100_000))
    for server in cluster.servers:
        server._token_s = 1000.0
    with pytest.raises(RolloutError, match=r"round_timeout_s=600.0.*total_inflight"):
        cluster.step()
    assert cluster.loop.time() == pytest.approx(600, abs=1)


def test_given_rewards_that_fail_for_good_when_the_policy_is_raise_then_the_step_ends_and_says_so(start) -> None:
    reward = RewardConfig(timeout_s=60.0, max_retries=1, on_error=OnRewardError.RAISE, check_at_start=False)
    cluster = start(options(reward=reward), task=Task(metric_of=lambda prompt_ids: ValueError("broken")))
    with pytest.raises(RolloutError, match=r"reward_error.*broken.*on_error=raise"):
        cluster.step()


@pytest.mark.parametrize("stop_rule", list(StopRuleName))
def test_given_every_group_filtered_then_the_step_ends_after_the_allowed_batches_and_names_the_remedy(
    start, stop_rule
) -> None:
    limits = FilterConfig(metric="acc", max_num_gen_batches=3)
    cluster = start(options(filter=limits, stop_rule=stop_rule), task=Task(metric_of=lambda prompt_ids: 1.0))
    with pytest.raises(ConfigError, match="max_num_gen_batches=3"):
        cluster.step()
    assert cluster.num_drawn == 15


@STRATEGIES
def test_given_rewards_that_hang_when_groups_are_dropped_then_the_reason_is_counted_and_steps_go_on(start, strategy) -> None:
    task = Task()
    healthy = task.metric_of
    cluster = start(options(rollout_strategy=strategy), task=task)

    async def hang_sometimes(outputs: Any, sample: Any) -> None:
        await asyncio.sleep(10**6 if outputs[-1].prompt_ids[0] % 3 == 0 else 0.1)
        outputs[-1].reward_score = healthy(outputs[-1].prompt_ids)
        outputs[-1].extra_fields["reward_extra_info"] = {"acc": outputs[-1].reward_score}

    for worker in cluster.workers:
        worker._compute_score = hang_sometimes
    failed = sum(cluster.step()["async_dapo/failure/reward_timeout"] for _ in range(5))
    assert failed == cluster.buffer.pool.ledger.failed > 0


def test_given_an_agent_loop_that_cancels_itself_when_nothing_stopped_then_its_group_is_set_aside_and_steps_go_on(
    start,
) -> None:
    cluster = start(options())
    for worker in cluster.workers:
        generate = worker._generate

        async def cancel_sometimes(*args: Any, generate: Any = generate, **kwargs: Any) -> Any:
            if kwargs["uid"] == "group-0" and kwargs["session_id"] == 1:
                raise asyncio.CancelledError
            return await generate(*args, **kwargs)

        worker._generate = cancel_sometimes
    for _ in range(3):
        cluster.step()
    assert "group-0" not in cluster.trained
