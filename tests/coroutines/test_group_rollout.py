"""One prompt group: failures and the judgement, with nothing left running."""

import asyncio
import math
from contextlib import suppress
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from recipe.async_dapo.calls import RecordedError, recorded
from recipe.async_dapo.config.values import ConfigError, OnRewardError
from recipe.async_dapo.core.outcome import Verdict
from recipe.async_dapo.core.trajectory import BrokenRecord, PromptGroup, Trajectory, Turn
from recipe.async_dapo.engines.engine_requests import EnginesUnavailable
from recipe.async_dapo.record.plain_values import MAX_DEPTH
from recipe.async_dapo.recording import TrajectoryInterrupted, append_tokens, prompt_digest
from recipe.async_dapo.rollout.agent_loops import Loops
from recipe.async_dapo.runtime.actor_watch import ActorDied
from recipe.async_dapo.store import rows_of

from ..support.rollout_world import Loop, N, finished, group, outcome_of, recorder, rollout, scores, stopped_at
from ..support.simulation import now_s, settle, simulate


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0, 1, 0, 0), Verdict.VALID), ((1, 1, 1, 1), Verdict.FILTERED), ((0,) * 4, Verdict.FILTERED)],
)
async def test_given_all_trajectories_end_then_the_group_is_judged_with_the_last_one(values, verdict) -> None:
    held = group()
    outcome = await outcome_of(rollout(compute_score=scores(*values)), held)
    assert outcome.verdict is verdict
    assert outcome.response_lens_tok == (1,) * N and (outcome.oldest_version, outcome.newest_version) == (0, 0)
    assert now_s() == pytest.approx(N) and not held.unfinished


@pytest.mark.parametrize(("value", "reason"), [(ValueError("broken"), "reward_error"), (math.nan, "reward_not_finite")])
async def test_given_a_reward_that_fails_for_good_when_groups_are_dropped_then_the_siblings_are_ended_at_once(
    value, reason
) -> None:
    outcome = await outcome_of(rollout(compute_score=scores(0, value)), group())
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, reason)
    assert now_s() == pytest.approx(2)  # sessions 2 and 3 were still generating


def breaking(*errors: Exception | None) -> Loop:
    """The first sessions raise these after a second, and the others end."""

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await asyncio.sleep(1)
        if errors[trajectory.session_id :] and (error := errors[trajectory.session_id]) is not None:
            raise error
        return finished(trajectory)

    return loop


@pytest.mark.parametrize("on_error", OnRewardError)
def test_given_an_agent_loop_that_raises_then_the_group_is_dropped_and_counted(on_error: OnRewardError) -> None:
    outcome = simulate(outcome_of(rollout(breaking(None, KeyError("broken")), on_error=on_error)))
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "generation_error")


@pytest.mark.parametrize(
    "error",
    [ActorDied("gone"), EnginesUnavailable("none"), ConfigError("key", 1, "remedy"), BrokenRecord("no log-probs")],
    ids=repr,
)
def test_given_a_part_of_the_system_gone_then_it_is_no_failed_group_but_an_error(error: Exception) -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        simulate(rollout(breaking(error)).run(group()))
    assert raised.value.exceptions == (error,)


def test_given_a_failed_trajectory_and_a_dead_actor_at_once_then_the_error_is_not_hidden_by_the_failure() -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        simulate(rollout(breaking(KeyError("refused"), *[ActorDied("gone")] * 3)).run(group()))
    assert all(isinstance(error, ActorDied) for error in raised.value.exceptions)


def test_given_an_actor_of_the_user_s_that_dies_under_a_loop_then_its_group_is_dropped_and_the_run_goes_on() -> None:
    outcome = simulate(outcome_of(rollout(breaking(ActorDiedError()))))
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "generation_error")


@pytest.mark.parametrize("validates", [False, True])
def test_given_extra_fields_nested_too_deep_then_their_trajectory_fails_and_the_run_goes_on(validates: bool) -> None:
    deep: list[Any] = []
    for _ in range(MAX_DEPTH):
        deep = [deep]

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        [output] = finished(trajectory)
        if trajectory.session_id == 1:
            output.extra_fields["parsed"] = deep
        return [output]

    outcome = simulate(outcome_of(rollout(loop, keeps_failures=validates)))
    assert (outcome.reason, outcome.failed) == ("nested_too_deep", 1)


async def test_given_validation_when_trajectories_fail_then_the_others_are_kept() -> None:
    held, broken = group(), breaking(None, KeyError("refused"))
    slow = scores(0.0, ValueError("broken"), 0.0, takes_s=10.0)  # its failure is the second one
    outcome = await outcome_of(rollout(broken, slow, keeps_failures=True), held)
    assert outcome.verdict is Verdict.VALID
    assert [trajectory.is_finished for trajectory in held.trajectories].count(True) == 2
    assert outcome.failed == 2 and outcome.reason == "generation_error"
    assert outcome.cause is not None and "refused" in outcome.cause.summary


async def test_given_a_loop_that_catches_the_stop_then_what_it_returns_is_not_scored_and_it_runs_again() -> None:
    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return finished(trajectory)

    held, reward = group(), scores(0, 1, 0, 1)
    assert await stopped_at(rollout(loop, reward), held, 5.0) is None
    assert len(held.unfinished) == N and not reward.calls
    assert (await outcome_of(rollout(loop, reward), held)).verdict is Verdict.VALID


async def test_given_a_copy_without_agents_when_a_call_never_answers_then_its_loop_is_told_so_at_the_limit() -> None:
    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        recorder().runner = Loops(timeout_s=60.0)
        with pytest.raises(RecordedError, match=r"no answer within 60\.0 s"):
            await recorded(asyncio.sleep, 1e6)
        return finished(trajectory)

    assert (await outcome_of(rollout(loop))).verdict is Verdict.VALID and now_s() == 60.0


async def unreset(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
    """The second one's environment does not start: it returns a masked output, and has asked no engine."""
    await asyncio.sleep(1)
    if trajectory.session_id != 1:
        return finished(trajectory)
    return [AgentLoopOutput(prompt_ids=[1], response_ids=[9, 9], response_mask=[0, 0], metrics=AgentLoopMetrics())]


def test_given_a_trajectory_that_samples_no_token_then_it_is_a_counted_failure() -> None:
    outcome = simulate(outcome_of(rollout(unreset)))
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "generation_error")
    assert outcome.cause is not None and "without a generated token" in outcome.cause.summary


async def test_given_validation_when_a_trajectory_samples_no_token_then_the_others_are_stored() -> None:
    held = group()
    outcome = await outcome_of(rollout(unreset, keeps_failures=True), held)
    assert outcome.verdict is Verdict.VALID
    rows = list(rows_of(held))
    assert [key for key, _, _ in rows] == ["group_0_0", "group_2_0", "group_3_0"]


def test_given_an_output_without_tokens_beside_others_then_it_is_a_counted_failure() -> None:
    async def empty(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        nothing = AgentLoopOutput(prompt_ids=[1], response_ids=[], response_mask=[], metrics=AgentLoopMetrics())
        return [nothing, *finished(trajectory)]

    outcome = simulate(outcome_of(rollout(empty)))
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "generation_error")


async def test_given_rewards_under_way_when_the_round_stops_then_they_end_at_once_and_the_group_is_unfinished() -> None:
    held = group()
    assert await stopped_at(rollout(compute_score=scores(takes_s=50)), held, 3.5) is None
    assert now_s() == pytest.approx(3.5)
    assert [trajectory.generated_tok for trajectory in held.trajectories] == [1, 1, 1, 0]
    assert len(held.unfinished) == N
    await asyncio.sleep(50)  # the scoring goes on


async def test_given_a_request_out_when_the_round_stops_then_it_is_awaited_and_the_loop_takes_no_other_step() -> None:
    steps: list[str] = []

    async def in_request(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        current = recorder()
        with current.request_out():
            await asyncio.sleep(5)  # comes back by itself: the engines have stopped
        if current.rests:
            raise TrajectoryInterrupted("stopped")
        steps.append("another step")
        return finished(trajectory)

    assert await stopped_at(rollout(in_request), group(), 1.0) is None
    assert now_s() == pytest.approx(5) and not steps


async def test_given_a_group_taken_just_before_the_stop_when_its_loop_never_asks_an_engine_then_it_ends_at_once():
    running = rollout(compute_score=scores(takes_s=50))
    running.running.interrupt()
    held = group()
    assert await running.run(held) is None
    assert now_s() == 0 and len(held.unfinished) == N


async def test_given_a_loop_with_tasks_of_its_own_when_the_round_stops_then_they_end_too() -> None:
    async def nested(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        async with asyncio.TaskGroup() as tools:
            tools.create_task(asyncio.sleep(10))
            tools.create_task(asyncio.sleep(20))
        return finished(trajectory)

    assert await stopped_at(rollout(nested), group(), 3.0) is None
    assert now_s() == pytest.approx(3.0)
    await settle()
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()


async def test_given_an_interruption_inside_a_task_of_the_loop_then_it_interrupts_the_trajectory() -> None:
    async def interrupted() -> None:
        await asyncio.sleep(1)
        recorder().stop()
        raise TrajectoryInterrupted("stopped")

    async def nested(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        async with asyncio.TaskGroup() as turns:
            turn = turns.create_task(interrupted())
        turn.result()
        return finished(trajectory)

    held = group()
    outcome = await outcome_of(rollout(nested), held)
    assert outcome.verdict is Verdict.SET_ASIDE and len(held.unfinished) == N


def test_given_a_loop_that_ends_before_a_recorded_turn_when_resumed_then_that_counts_as_lost() -> None:
    held = group()
    finished_turn = Turn(prompt_digest=prompt_digest([2]), prompt_len_tok=1, finish_reason="stop")
    append_tokens(finished_turn, [7], [0.0], [(0, 1)])
    unfinished = Turn(prompt_digest=prompt_digest([2]), prompt_len_tok=1)
    append_tokens(unfinished, [8, 9], [0.0] * 2, [(0, 2)])
    held.trajectories[2].turns += [finished_turn, unfinished]
    running = rollout()
    outcome = simulate(outcome_of(running, held))
    assert running.take_report().counts.diverged_tok == 2
    assert outcome.response_lens_tok == (1,) * N, "the turn that the loop did not ask for is no part of the response"


async def test_given_a_worker_that_is_cancelled_when_a_group_runs_then_nothing_is_left_running() -> None:
    task = asyncio.create_task(rollout().run(group()))
    await asyncio.sleep(1.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()
