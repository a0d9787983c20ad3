"""Inline reward: every way a reward call can go wrong has a counted reason, and none blocks or slips through."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from recipe.async_dapo.config import REWARD_IMPORT_LIMIT_S, ConfigError
from recipe.async_dapo.rollout.reward import RewardFailed, RewardScorer
from recipe.async_dapo.rollout.reward_isolation import RewardPool

from ..support.fakes import ScriptedProcess, ScriptedReward
from ..support.scripted_reward import reward_options
from ..support.simulation import now_s, simulate

TIMEOUT_S = 60.0
UNREACHABLE = ActorUnavailableError("its worker cannot be reached", None)


def output() -> AgentLoopOutput:
    return AgentLoopOutput(prompt_ids=[1], response_ids=[2], response_mask=[1], metrics=AgentLoopMetrics())


def scorer(reward: Any, *, metric: str | None = "acc", max_retries: int = 0, processes: int | None = 2) -> RewardScorer:
    reward_ = reward_options(timeout_s=TIMEOUT_S, processes=processes, max_retries=max_retries)
    options: Any = SimpleNamespace(reward=reward_, filter=SimpleNamespace(metric=metric))
    return RewardScorer(reward, options=options)


def test_given_a_score_then_every_output_of_the_trajectory_has_it() -> None:
    outputs = [output(), output(), output()]
    simulate(scorer(ScriptedReward(0.5)).score(outputs, {}))
    assert [scored.reward_score for scored in outputs] == [0.5] * 3
    assert [scorer(None).metric_of(scored) for scored in outputs] == [0.5] * 3


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (ValueError("broken"), "reward_error"),
        (RayTaskError("f", "", UNREACHABLE).as_instanceof_cause(), "reward_error"),  # the function's own call
        (TimeoutError("the reward's own"), "reward_timeout"),
        (math.nan, "reward_not_finite"),
        (math.inf, "reward_not_finite"),
        (None, "reward_not_finite"),
        ("no number", "reward_not_finite"),
    ],
)
def test_given_a_reward_that_fails_for_good_then_it_is_tried_as_often_as_allowed_and_the_reason_is_named(
    attempt: Any, reason: str
) -> None:
    for max_retries in range(3):
        reward = ScriptedReward(attempt)
        failing = scorer(reward, max_retries=max_retries)
        with pytest.raises(RewardFailed) as failed:
            simulate(failing.score([output()], {}))
        assert failed.value.reason == reason
        assert reward.calls == 1 + max_retries


def test_given_a_metric_that_is_no_number_then_the_reward_is_not_finite() -> None:
    async def bad_metric(outputs: list[AgentLoopOutput], sample: dict[str, Any]) -> None:
        outputs[-1].reward_score = 1.0
        outputs[-1].extra_fields["reward_extra_info"] = {"acc": None}

    with pytest.raises(RewardFailed, match="reward_not_finite"):
        simulate(scorer(bad_metric).score([output()], {}))


async def test_given_a_reward_that_fails_once_when_retried_then_the_second_score_counts() -> None:
    for first in (ValueError("broken"), math.nan):
        scored, reward = output(), ScriptedReward(first, 0.25)
        await scorer(reward, max_retries=1).score([scored], {})
        assert (scored.reward_score, reward.calls) == (0.25, 2)


async def test_given_a_reward_that_hangs_without_a_process_of_ours_then_each_attempt_ends_at_its_time_limit() -> None:
    with pytest.raises(RewardFailed, match="reward_timeout"):
        await scorer(ScriptedReward(takes_s=10**6), max_retries=2, processes=0).score([output()], {})
    assert now_s() == pytest.approx(3 * TIMEOUT_S)


async def test_given_a_burst_of_slow_answers_then_those_that_wait_in_line_for_a_process_do_not_time_out() -> None:
    async def start() -> ScriptedProcess:
        return ScriptedProcess(takes_many=False, timeout_s=TIMEOUT_S)

    pool = RewardPool(start, limit=2)

    async def compute_score(outputs: list[AgentLoopOutput], _: dict[str, Any]) -> None:
        assert await pool.call({"takes_s": 2.0}) == "score"
        outputs[-1].reward_score = 1.0

    burst, answers = scorer(compute_score, metric=None), [output() for _ in range(1024)]
    async with asyncio.TaskGroup() as tasks:
        for answer in answers:
            tasks.create_task(burst.score([answer], {}))
    assert [answer.reward_score for answer in answers] == [1.0] * 1024
    assert now_s() > 1024


async def test_given_a_hanging_reward_when_the_round_stops_then_it_is_a_cancellation_and_not_a_failure() -> None:
    task = asyncio.create_task(scorer(ScriptedReward(takes_s=10**6), max_retries=2).score([output()], {}))
    await asyncio.sleep(TIMEOUT_S - 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now_s() == pytest.approx(TIMEOUT_S - 1)


def test_given_a_metric_the_reward_does_not_return_then_the_configuration_is_blamed_at_once() -> None:
    for reward in (ScriptedReward(metric=None), ScriptedReward(metric="score")):
        with pytest.raises(ConfigError, match=r"algorithm.filter_groups.metric=acc"):
            simulate(scorer(reward, max_retries=3).score([output()], {}))
        assert reward.calls == 1


def test_given_no_filter_then_no_metric_is_needed() -> None:
    scored = output()
    simulate(scorer(ScriptedReward(0.5, metric=None), metric=None).score([scored], {}))
    assert scored.reward_score == 0.5


def test_given_a_dead_reward_worker_then_it_is_no_bad_answer() -> None:
    with pytest.raises(ActorDiedError):
        simulate(scorer(ScriptedReward(ActorDiedError()), max_retries=3).score([output()], {}))


def test_given_a_reward_worker_that_cannot_be_reached_for_a_while_then_no_attempt_is_spent_on_it() -> None:
    scored = output()
    simulate(scorer(ScriptedReward(*[UNREACHABLE] * 10, 0.5), max_retries=0).score([scored], {}))
    assert scored.reward_score == 0.5


async def test_given_a_reward_worker_that_cannot_be_reached_for_good_then_an_attempt_ends_at_its_time_limit() -> None:
    with pytest.raises(RewardFailed, match="reward_timeout: its reward worker cannot be reached for 360"):
        await scorer(ScriptedReward(UNREACHABLE)).score([output()], {})
    assert now_s() == pytest.approx(REWARD_IMPORT_LIMIT_S + TIMEOUT_S)


@pytest.mark.parametrize("metric", [None, "acc"])
def test_given_an_agent_loop_that_scores_itself_then_its_score_counts_and_a_missing_metric_is_named(metric) -> None:
    async def nothing(outputs: list[AgentLoopOutput], sample: dict[str, Any]) -> None:
        """verl's worker does not score an output that has a score."""

    outputs = [output(), output()]
    outputs[-1].reward_score = 0.75
    if metric is None:
        simulate(scorer(nothing, metric=None).score(outputs, {}))
        assert [scored.reward_score for scored in outputs] == [0.75] * 2
    else:
        with pytest.raises(ConfigError, match=r"filter_groups\.metric"):
            simulate(scorer(nothing).score(outputs, {}))
