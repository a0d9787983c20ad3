"""Whole runs on virtual time when a part dies, hangs or fails, in a round or outside it: others go on, or an error
comes in time.
"""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from recipe.async_dapo.config.options import FilterConfig
from recipe.async_dapo.config.values import ConfigError, OnRewardError, RolloutStrategy
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.engines.engine_requests import EnginesUnavailable
from recipe.async_dapo.rollout.all_workers import RolloutError
from recipe.async_dapo.runtime.logs import last_line
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from ..support.scripted_reward import reward_options
from ..support.simulated_cluster import Cluster
from ..support.simulated_options import STRATEGIES, options
from ..support.simulated_worker import Task


def error_of_a_step(cluster: Cluster, kill: Any, *, after_s: float) -> tuple[str, float]:
    """The error that ends the step, and how long after the death it comes [s]."""
    started_s = cluster.loop.time()
    cluster.loop.call_later(after_s, kill)
    with pytest.raises(RolloutError) as raised:
        cluster.step()
    return str(raised.value), cluster.loop.time() - started_s - after_s


@pytest.mark.parametrize("after_s", [0.02, 2.0])
def test_given_all_servers_dead_then_the_step_ends_with_an_error_at_once(start, after_s) -> None:
    cluster = start(options(), task=Task(lambda prompt_ids: 20))

    def kill() -> None:
        for handle in cluster.server_handles:
            handle.kill()

    cluster.loop.call_later(after_s, kill)
    with pytest.raises(EnginesUnavailable, match=r"engine 0 died: .*engine 1 died: .*trainer\.resume_mode=auto"):
        cluster.step()
    assert cluster.loop.time() < after_s + 2


def test_given_a_server_that_hangs_when_prompts_are_asked_for_all_the_time_then_it_is_ended_in_time(start) -> None:
    def metric_of(prompt_ids: list[int]) -> float:
        return float(prompt_ids[1] % 2) if prompt_ids[0] % 10 == 9 else 1.0

    opts = options(target_valid_groups=4, over_sampling_batch_size=1, engine_timeout_s=90.0)
    cluster = start(opts, task=Task(lambda prompt_ids: 10, metric_of))
    cluster.servers[1].token_s = 1e6
    cluster.servers[1].ping = asyncio.Event().wait
    was_dead: list[bool] = []
    cluster.loop.call_at(1.5 * opts.engine_timeout_s + 1, lambda: was_dead.append(cluster.server_handles[1].is_dead))
    cluster.step()
    assert was_dead == [True]


@pytest.mark.parametrize("part", ["coordinator_handle", "balancer_handle", "worker"])
@pytest.mark.parametrize("after_s", [0.005, 2.0])
def test_given_an_actor_that_dies_then_the_step_ends_with_an_error_at_once(start, part, after_s) -> None:
    cluster = start(options(), task=Task(lambda prompt_ids: 20))
    handle = cluster.worker_handles[1] if part == "worker" else getattr(cluster, part)
    message, waited_s = error_of_a_step(cluster, handle.kill, after_s=after_s)
    assert "died" in message and waited_s < 30


def test_given_servers_that_never_stop_then_the_step_ends_with_an_error_at_the_time_limit(start) -> None:
    cluster = start(
        options(stop_rule=StopRuleName.FIRST_COMPLETED), task=Task(lambda prompt_ids: 5 + 900 * (prompt_ids[0] == 1))
    )
    for server in cluster.servers:
        server.hangs = True
    with pytest.raises(EnginesUnavailable, match=r"left: (engine \d has not answered to stop_generation within .*){2}"):
        cluster.step()
    assert cluster.loop.time() < 60 + cluster.options.engine_timeout_s


def test_given_an_engine_that_generates_for_ever_then_the_step_ends_with_an_error_at_the_round_limit(start) -> None:
    cluster = start(options(round_timeout_s=600.0), task=Task(lambda prompt_ids: 100_000))
    for server in cluster.servers:
        server.token_s = 1000.0
    with pytest.raises(RolloutError, match=r"round_timeout_s=600.0.*total_inflight"):
        cluster.step()
    assert cluster.loop.time() == pytest.approx(600, abs=2)


def test_given_a_loop_that_never_lets_itself_be_cancelled_then_the_step_ends_and_names_worker_and_place(start) -> None:
    cluster = start(options(stop_rule=StopRuleName.FIRST_COMPLETED))
    is_over = asyncio.Event()

    async def stubborn(*_: Any, **prompt: Any) -> Any:
        while not is_over.is_set():
            try:
                await is_over.wait()
            except asyncio.CancelledError:
                continue

    cluster.workers[1].run = stubborn
    place = r"for prompt \S+ in \S*stubborn \(test_cluster_faults.py:\d+\); an agent loop must end when it is cancelled"
    with pytest.raises(RolloutError, match=rf"^[^;]*: agent loop worker 1 has \d+ trajectories .* {place}"):
        cluster.step()
    is_over.set()


def test_given_rewards_that_all_fail_then_the_step_ends_and_says_so_before_the_data_is_used_up(start) -> None:
    cluster = start(options(), task=Task(metric_of=lambda prompt_ids: ValueError("broken")))
    with pytest.raises(RuntimeError, match=r"groups ended as \d+ reward_error. The reward function, compute_score of "):
        cluster.step()
    assert cluster.num_drawn <= 7 * cluster.options.over_sampling_batch_size


def test_given_rewards_that_all_fail_when_validating_then_the_error_says_so(start) -> None:
    cluster = start(options(), task=Task(metric_of=lambda prompt_ids: ValueError("broken")))
    with pytest.raises(RuntimeError, match="every trajectory of the validation failed"):
        cluster.validate(3)


def test_given_rewards_that_fail_in_a_validation_then_they_are_counted(start) -> None:
    cluster = start(options(), task=Task(metric_of=lambda ids: ValueError("broken") if ids[0] % 2 else 1.0))
    n = cluster.options.rollout_n
    assert len(cluster.validate(6).keys) == 3 * n
    assert cluster.buffer.left_out == 3 * n


def test_given_rewards_that_fail_for_good_when_the_policy_is_raise_then_the_step_ends_and_says_so(start) -> None:
    reward = reward_options(max_retries=1, on_error=OnRewardError.RAISE)
    cluster = start(options(reward=reward), task=Task(metric_of=lambda prompt_ids: ValueError("broken")))
    with pytest.raises(RolloutError, match=r"reward_error.*broken.*on_error=raise"):
        cluster.step()


@pytest.mark.parametrize("stop_rule", list(StopRuleName))
def test_given_every_group_filtered_then_the_step_ends_after_the_allowed_batches_and_names_the_remedy(start, stop_rule):
    limits = FilterConfig(metric="acc", max_num_gen_batches=3)
    cluster = start(options(filter=limits, stop_rule=stop_rule), task=Task(metric_of=lambda prompt_ids: 1.0))
    with pytest.raises(ConfigError) as refused:
        cluster.step()
    assert cluster.num_drawn == 15
    drew = "drew 3 batches and still has fewer than 2 valid groups; groups ended as "
    assert str(refused.value).startswith(f"algorithm.filter_groups.max_num_gen_batches=3: {drew}")
    assert " filtered: the task is" in str(refused.value)


def test_given_a_cap_on_old_tokens_when_groups_are_filtered_then_no_more_are_drawn_than_it_lets_run(start) -> None:
    opts = options(
        filter=FilterConfig(metric="acc", max_num_gen_batches=2),
        target_valid_groups=8,
        over_sampling_batch_size=12,
        rollout_strategy=RolloutStrategy.PARTIAL,
        max_partial_share=0.2,
    )
    cluster, drawn = start(opts, task=Task(metric_of=lambda prompt_ids: 1.0)), []
    source = cluster.buffer.source
    draw, source.draw = source.draw, lambda count, *of: drawn.append(count) or draw(count, *of)
    for _ in range(3):
        cluster.buffer.mix.over_sampling.observe(0.5)  # 12 groups, then 10, 9, 8
    with pytest.raises(ConfigError, match="max_num_gen_batches=2"):
        cluster.step()
    assert drawn == [8] + [1] * 12


def test_given_groups_that_mostly_fail_when_the_limit_is_reached_then_the_reward_is_blamed_and_not_the_data(start):
    def metric_of(prompt_ids: list[int]) -> float | Exception:
        return TimeoutError("no answer") if prompt_ids[0] % 4 and not prompt_ids[1] else 1.0

    limits = FilterConfig(metric="acc", max_num_gen_batches=2)
    cluster = start(options(filter=limits), task=Task(metric_of=metric_of))
    blamed = "reward.py, gave no answer within async_dapo.reward.timeout_s=60.0"
    with pytest.raises(ConfigError, match=rf"ended as \d+ filtered, \d+ reward_timeout: .* {blamed}") as refused:
        cluster.step()
    assert "data" not in str(refused.value)


def test_given_a_reward_without_the_filter_metric_when_a_round_runs_then_the_error_names_the_option(start) -> None:
    cluster = start(options(), task=Task())

    async def forget_the_metric(outputs: Any, sample: Any) -> None:
        outputs[-1].reward_score = 1.0
        outputs[-1].extra_fields["reward_extra_info"] = {"score": 1.0}

    for worker in cluster.workers:
        worker._compute_score = forget_the_metric
    with pytest.raises(ConfigError, match=r"^algorithm.filter_groups.metric=acc: .*\['score'\]"):
        cluster.step()


@pytest.mark.slow
@STRATEGIES
def test_given_rewards_that_hang_when_groups_are_dropped_then_the_reason_is_counted_and_steps_go_on(start, strategy):
    task = Task()
    healthy = task.metric_of
    cluster = start(options(rollout_strategy=strategy), task=task)

    async def hang_sometimes(outputs: Any, sample: Any) -> None:
        if outputs[-1].prompt_ids[0] % 3 == 0:
            await asyncio.sleep(cluster.options.reward.timeout_s)
            raise TimeoutError("no answer")
        outputs[-1].reward_score = healthy(outputs[-1].prompt_ids)
        outputs[-1].extra_fields["reward_extra_info"] = {"acc": outputs[-1].reward_score}

    for worker in cluster.workers:
        worker._compute_score = hang_sometimes
    metrics = cluster.steps(5)
    failed = sum(step["async_dapo/failure/groups"] for step in metrics)
    assert failed == cluster.buffer.pool.ledger.failed > 0


def test_given_an_agent_loop_that_cancels_itself_when_nothing_stopped_then_its_group_fails_and_steps_go_on(start):
    cluster = start(options())
    for worker in cluster.workers:
        generate = worker._generate

        async def cancel_sometimes(
            sampling_params: Any, uid: str, prompt_ids: list[int], generate: Any = generate
        ) -> Any:
            if uid == "group-0" and prompt_ids[1] == 1:
                raise asyncio.CancelledError
            return await generate(sampling_params, uid, prompt_ids)

        worker._generate = cancel_sometimes
    failed = sum(cluster.step()["async_dapo/failure/groups"] for _ in range(3))
    assert failed == cluster.buffer.pool.ledger.failed == 1
    assert "group-0" not in cluster.trained


def test_given_agent_loops_that_all_cancel_themselves_then_training_ends_and_the_error_blames_them(start) -> None:
    cluster = start(options())

    async def cancel(*_: Any) -> None:
        raise asyncio.CancelledError

    for worker in cluster.workers:
        worker._generate = cancel
    end_after(cluster, prompts=2_000)
    with pytest.raises(RuntimeError, match=r"groups ended as \d+ generation_error. .* loop has cancelled itself; corr"):
        cluster.step()


@pytest.mark.slow
def test_given_fewer_tokens_a_round_than_any_response_has_then_training_ends_and_the_option_is_named(start) -> None:
    opts = options(
        rollout_strategy=RolloutStrategy.PARTIAL,
        stop_rule=StopRuleName.FIRST_COMPLETED,
        max_tokens_per_round=2,
    )
    cluster = start(opts, task=Task(lambda _: 10))
    end_after(cluster, prompts=2_000)
    with pytest.raises(
        ConfigError, match=r"^async_dapo.max_tokens_per_round=2: .*: groups ended as \d+ set aside; raise"
    ):
        cluster.step()


def end_after(cluster: Any, *, prompts: int) -> None:
    """No step needs so many."""
    draw = cluster.buffer.source.draw

    def counted(count: int, *of: Any) -> Any:
        assert cluster.num_drawn < prompts, "prompts are drawn without end"
        return draw(count, *of)

    cluster.buffer.source.draw = counted


def servers_of(cluster: Cluster) -> list[str]:
    return cluster.loop.run_until_complete(cluster.balancer.get_status())["registered_handles"]


def begin(cluster: Cluster) -> None:
    """The trainer's start, when engines are there."""
    passes = SimpleNamespace(begin=lambda: None)
    trainer: Any = SimpleNamespace(_passes=passes, checkpoint_manager=cluster.engines, global_steps=0)
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
