"""A score that a stop interrupts goes on, and is found by the same response."""

import asyncio
from typing import Any

from recipe.async_dapo.core.trajectory import Trajectory
from recipe.async_dapo.core.users_errors import ProcessLost
from recipe.async_dapo.extensions.agents.call_runner import CallRunner
from recipe.async_dapo.extensions.agents.journal import Journal
from recipe.async_dapo.rollout.reward import RewardScorer

from ....coroutines.test_reward import output, scorer
from ....support.fakes import ScriptedReward
from ....support.rollout_world import call_runner, rollout
from ....support.simulation import now_s


async def interrupted(scoring: RewardScorer, trajectory: Trajectory, runner: CallRunner) -> None:
    """A stop comes while the response [2] is being scored."""
    recorder = runner.recorder(trajectory, prompt_uid="", attempt="")
    recorder.begin_round(trajectory, runner=runner, limit_tok=None)
    task = asyncio.create_task(scoring.score([output()], {}, recorder))
    await asyncio.sleep(1.0)
    assert not Journal.of(trajectory).calls, "no journal before a stop"
    recorder.stop()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() and len(Journal.of(trajectory).calls) == 1


async def scored_later(scoring: RewardScorer, trajectory: Trajectory, runner: Any, responses: list[int]) -> Any:
    recorder, scored = runner.recorder(trajectory, prompt_uid="", attempt=""), output()
    recorder.begin_round(trajectory, runner=runner, limit_tok=None)
    scored.response_ids = responses
    await scoring.score([scored], {}, recorder)
    return scored


async def test_given_a_stop_while_a_response_is_scored_then_that_goes_on_and_another_one_is_scored_itself() -> None:
    trajectory, runner, slow = Trajectory(session_id=0), call_runner(), ScriptedReward(0.25, 0.75, takes_s=10.0)
    await interrupted(scorer(slow), trajectory, runner)
    for response_ids, score in (([2], 0.25), ([2], 0.25), ([3], 0.75)):
        assert (await scored_later(scorer(slow), trajectory, runner, response_ids)).reward_score == score
    assert (slow.calls, now_s()) == (2, 20.0)


class Lost(ProcessLost):
    """A process that ran the function."""

    metric = "failure/lost"


async def test_given_a_process_that_ends_with_a_score_that_goes_on_then_the_next_round_counts_it() -> None:
    trajectory, running, reward = Trajectory(session_id=0), rollout(), ScriptedReward(Lost(), 0.25, takes_s=10.0)
    runner = running._loops
    await interrupted(scorer(reward, max_retries=1), trajectory, runner)
    assert (await scored_later(scorer(reward), trajectory, runner, [2])).reward_score == 0.25
    counts = [running.take_report().counts.of_extensions for _ in range(2)]
    assert [one.get(Lost.metric) for one in counts] == [1, None]


async def test_given_a_score_of_before_a_resume_without_the_metric_of_now_then_the_response_is_scored_again() -> None:
    trajectory, runner = Trajectory(session_id=0), call_runner()
    await interrupted(scorer(ScriptedReward(metric=None, takes_s=10.0), metric=None), trajectory, runner)
    scored = await scored_later(scorer(reward := ScriptedReward(0.5)), trajectory, runner, [2])
    assert reward.calls == 1 and scored.extra_fields["reward_extra_info"]["acc"] == 0.5


async def test_given_an_error_in_a_score_that_a_stop_has_interrupted_then_the_response_is_scored_again() -> None:
    trajectory, runner = Trajectory(session_id=0), call_runner()
    reward = ScriptedReward(ValueError("broken"), 0.5, takes_s=10.0)
    await interrupted(scorer(reward), trajectory, runner)
    assert (await scored_later(scorer(reward), trajectory, runner, [2])).reward_score == 0.5
