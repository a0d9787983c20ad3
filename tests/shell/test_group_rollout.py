"""One prompt group: failures, interruptions and the judgement, with nothing left running."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from recipe.async_dapo.config import ConfigError, OnRewardError, RewardConfig
from recipe.async_dapo.core.recording import Recorder, append_tokens, current_recorder, prompt_digest
from recipe.async_dapo.core.trajectory import (
    Attachment,
    BrokenRecord,
    GroupOutcome,
    PromptGroup,
    Trajectory,
    Turn,
    Verdict,
)
from recipe.async_dapo.engine_requests import EnginesUnavailable, TrajectoryInterrupted
from recipe.async_dapo.group_rollout import GroupRollout
from recipe.async_dapo.reward import RewardScorer

from .simulation import now_s, settle, simulate

N = 4
Loop = Callable[[PromptGroup, Trajectory], Awaitable[list[AgentLoopOutput]]]


def group() -> PromptGroup:
    return PromptGroup(
        uid="group", prompt={}, drawn_at_step=1, trajectories=[Trajectory(session_id=k) for k in range(N)]
    )


async def outcome_of(rollout: GroupRollout, held: PromptGroup | None = None) -> GroupOutcome:
    """Of a group that is not interrupted."""
    outcome = await rollout.run(held or group())
    assert outcome is not None
    return outcome


def recorder() -> Recorder:
    """Of the running trajectory."""
    current = current_recorder.get()
    assert current is not None
    return current


def finished(trajectory: Trajectory, tokens: int = 1) -> list[AgentLoopOutput]:
    """What an agent loop returns; its tokens are recorded as the client would."""
    turn = recorder().begin_turn([trajectory.session_id])
    if turn.finish_reason is None:
        append_tokens(turn, [7] * tokens, [0.0] * tokens, [(0, tokens)])
        turn.finish_reason = "stop"
    metrics = AgentLoopMetrics()
    return [AgentLoopOutput(prompt_ids=[1], response_ids=[7] * tokens, response_mask=[1] * tokens, metrics=metrics)]


async def quick(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
    await asyncio.sleep(1 + trajectory.session_id)
    return finished(trajectory)


def scores(*values: float | Exception, takes_s: float = 0.0) -> Any:
    """Scores of the sessions, in order of completion."""
    remaining = list(values)

    async def compute_score(outputs: list[AgentLoopOutput], _: dict[str, Any]) -> None:
        value = remaining.pop(0) if remaining else 1.0
        await asyncio.sleep(takes_s)
        if isinstance(value, Exception):
            raise value
        outputs[-1].reward_score = value
        outputs[-1].extra_fields["reward_extra_info"] = {"acc": value}

    return compute_score


def rollout(
    loop: Loop = quick,
    compute_score: Any = None,
    *,
    on_error: OnRewardError = OnRewardError.DROP_GROUP,
    is_filtered: bool = True,
    keeps_failures: bool = False,
    **hooks: Any,
) -> GroupRollout:
    reward = RewardConfig(timeout_s=60.0, max_retries=0, on_error=on_error, check_at_start=False)
    options: Any = SimpleNamespace(reward=reward, filter=SimpleNamespace(metric="acc" if is_filtered else None))
    scorer = RewardScorer(compute_score or scores(0, 1, 0, 1), options=options)
    return GroupRollout(loop, scorer, reward=reward, is_filtered=is_filtered, keeps_failures=keeps_failures, **hooks)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0, 1, 0, 0), Verdict.VALID), ((1, 1, 1, 1), Verdict.FILTERED), ((0,) * 4, Verdict.FILTERED)],
)
def test_given_all_trajectories_end_then_the_group_is_judged_with_the_last_one(values, verdict) -> None:
    async def main() -> None:
        held = group()
        outcome = await outcome_of(rollout(compute_score=scores(*values)), held)
        assert outcome.verdict is verdict
        assert outcome.response_lens_tok == (1,) * N and (outcome.oldest_version, outcome.newest_version) == (0, 0)
        assert now_s() == pytest.approx(N) and not held.unfinished

    simulate(main())


def test_given_the_filter_off_when_nothing_varies_then_the_group_is_valid() -> None:
    outcome = simulate(outcome_of(rollout(compute_score=scores(1, 1, 1, 1), is_filtered=False)))
    assert outcome.verdict is Verdict.VALID


@pytest.mark.parametrize(("value", "reason"), [(ValueError("broken"), "reward_error"), (math.nan, "reward_not_finite")])
def test_given_a_reward_that_fails_for_good_when_groups_are_dropped_then_the_siblings_are_ended_at_once(
    value, reason
) -> None:
    async def main() -> None:
        outcome = await outcome_of(rollout(compute_score=scores(0, value)), group())
        assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, reason)
        assert now_s() == pytest.approx(2)  # sessions 2 and 3 were still generating

    simulate(main())


def test_given_a_reward_that_fails_for_good_when_the_policy_is_raise_then_training_ends_with_its_reason() -> None:
    failing = rollout(compute_score=scores(ValueError("broken")), on_error=OnRewardError.RAISE)
    with pytest.raises(RuntimeError, match=r"reward_error.*broken.*on_error=raise"):
        simulate(failing.run(group()))


@pytest.mark.parametrize("on_error", OnRewardError)
def test_given_an_agent_loop_that_raises_then_the_group_is_dropped_and_counted(on_error: OnRewardError) -> None:
    async def broken(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await asyncio.sleep(1)
        if trajectory.session_id == 1:
            raise KeyError("broken")
        await asyncio.sleep(100)
        return finished(trajectory)

    outcome = simulate(outcome_of(rollout(broken, on_error=on_error)))
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "generation_error")


@pytest.mark.parametrize(
    "error",
    [ActorDiedError(), EnginesUnavailable("none"), ConfigError("key", 1, "remedy"), BrokenRecord("no log-probs")],
    ids=repr,
)
def test_given_a_part_of_the_system_gone_then_it_is_no_failed_group_but_an_error(error: Exception) -> None:
    async def broken(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await asyncio.sleep(1 + trajectory.session_id)
        raise error

    with pytest.raises(BaseExceptionGroup) as raised:
        simulate(rollout(broken).run(group()))
    assert raised.value.exceptions == (error,)


def test_given_a_failed_trajectory_and_a_dead_actor_at_once_then_the_error_is_not_hidden_by_the_failure() -> None:
    async def broken(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await asyncio.sleep(1)
        raise ActorDiedError() if trajectory.session_id else KeyError("refused")

    with pytest.raises(BaseExceptionGroup) as raised:
        simulate(rollout(broken).run(group()))
    assert all(isinstance(error, ActorDiedError) for error in raised.value.exceptions)


def test_given_validation_when_trajectories_fail_then_the_others_are_kept() -> None:
    async def broken(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await asyncio.sleep(1)
        if trajectory.session_id == 1:
            raise KeyError("refused")
        return finished(trajectory)

    async def main() -> None:
        held = group()
        outcome = await outcome_of(rollout(broken, scores(0.0, ValueError("broken"), 0.0), keeps_failures=True), held)
        assert outcome.verdict is Verdict.VALID
        assert [trajectory.is_finished for trajectory in held.trajectories].count(True) == 2

    simulate(main())


async def interrupted_at(
    running: GroupRollout, time_s: float, held: PromptGroup | None = None
) -> tuple[GroupOutcome | None, PromptGroup]:
    held = held or group()
    task = asyncio.create_task(running.run(held))
    await asyncio.sleep(time_s)
    running.running.interrupt()
    outcome = await task
    assert now_s() == pytest.approx(time_s)
    return outcome, held


def test_given_rewards_under_way_when_the_round_stops_then_they_end_at_once_and_the_group_is_unfinished() -> None:
    async def main() -> None:
        running = rollout(compute_score=scores(takes_s=50))
        outcome, held = await interrupted_at(running, 3.5)
        assert outcome is None
        assert [trajectory.generated_tok for trajectory in held.trajectories] == [1, 1, 1, 0]
        assert len(held.unfinished) == N

    simulate(main())


def test_given_an_interrupted_group_when_run_again_then_finished_trajectories_stay_and_the_rest_is_continued() -> None:
    async def main() -> None:
        outcome, held = await interrupted_at(rollout(compute_score=scores(0, 1)), 2.5)
        assert outcome is None and len(held.unfinished) == 2
        kept = [trajectory.outputs for trajectory in held.trajectories[:2]]
        outcome = await outcome_of(rollout(compute_score=scores(1, 0)), held)
        assert outcome.verdict is Verdict.VALID
        assert [trajectory.outputs for trajectory in held.trajectories[:2]] == kept

    simulate(main())


def test_given_a_request_out_when_the_round_stops_then_it_is_awaited_and_the_loop_takes_no_other_step() -> None:
    steps: list[str] = []

    async def in_request(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        current = recorder()
        current.in_request = True
        await asyncio.sleep(5)  # comes back by itself: the engines have stopped
        current.in_request = False
        if current.is_stopping:
            raise TrajectoryInterrupted("stopped")
        steps.append("another step")
        return finished(trajectory)

    async def main() -> None:
        running, held = rollout(in_request), group()
        task = asyncio.create_task(running.run(held))
        await asyncio.sleep(1)
        running.running.interrupt()
        assert await task is None
        assert now_s() == pytest.approx(5) and not steps

    simulate(main())


def test_given_a_group_taken_just_before_the_stop_when_its_loop_never_asks_an_engine_then_it_ends_at_once() -> None:
    async def main() -> None:
        running = rollout(compute_score=scores(takes_s=50))
        running.running.interrupt()
        held = group()
        assert await running.run(held) is None
        assert now_s() == 0 and len(held.unfinished) == N

    simulate(main())


def test_given_a_loop_with_tasks_of_its_own_when_the_round_stops_then_they_end_too() -> None:
    async def nested(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        async with asyncio.TaskGroup() as tools:
            tools.create_task(asyncio.sleep(10))
            tools.create_task(asyncio.sleep(20))
        return finished(trajectory)

    async def main() -> None:
        outcome, _ = await interrupted_at(rollout(nested), 3.0)
        assert outcome is None
        await settle()
        assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()

    simulate(main())


def test_given_an_interruption_inside_a_task_of_the_loop_then_it_interrupts_the_trajectory() -> None:
    async def interrupted() -> None:
        await asyncio.sleep(1)
        raise TrajectoryInterrupted("stopped")

    async def nested(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        async with asyncio.TaskGroup() as turns:
            turn = turns.create_task(interrupted())
        turn.result()
        return finished(trajectory)

    async def main() -> None:
        held = group()
        outcome = await outcome_of(rollout(nested), held)
        assert outcome.verdict is Verdict.SET_ASIDE and len(held.unfinished) == N

    simulate(main())


def frozen(held: PromptGroup, session_id: int) -> Attachment:
    """Let a trajectory have a request that stayed in its engine."""
    attachment = Attachment(server_id="server", lease_id=f"lease-{session_id}")
    turn = Turn(prompt_digest=prompt_digest([session_id]), prompt_len_tok=1, attachment=attachment)
    held.trajectories[session_id].turns.append(turn)
    return attachment


def test_given_a_group_that_is_dropped_when_requests_of_it_are_frozen_in_engines_then_they_are_taken_out() -> None:
    async def broken(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await asyncio.sleep(1 + 100 * trajectory.session_id)
        raise KeyError("refused")

    abandoned: list[Attachment] = []
    held = group()
    attachment = frozen(held, 2)
    outcome = simulate(outcome_of(rollout(broken, abandon=abandoned.extend), held))
    assert outcome.verdict is Verdict.FAILED and abandoned == [attachment]


def test_given_a_loop_that_takes_another_way_when_its_request_is_frozen_in_an_engine_then_it_is_taken_out() -> None:
    async def parted(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        recorder().begin_turn([trajectory.session_id, 99])
        return finished(trajectory)

    abandoned: list[Attachment] = []
    held = group()
    attachment = frozen(held, 2)
    simulate(outcome_of(rollout(parted, abandon=abandoned.extend), held))
    assert abandoned == [attachment]


def test_given_a_worker_that_is_cancelled_when_a_group_runs_then_nothing_is_left_running() -> None:
    async def main() -> None:
        task = asyncio.create_task(rollout().run(group()))
        await asyncio.sleep(1.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settle()
        assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()

    simulate(main())


def test_generated_trajectories_are_told_once_each_before_they_are_scored() -> None:
    told: list[tuple[float, str]] = []

    async def main() -> None:
        running = rollout(
            compute_score=scores(0, 1, 0, 1, takes_s=10), on_generated=lambda uid: told.append((now_s(), uid))
        )
        await running.run(group())

    simulate(main())
    assert told == [(pytest.approx(k), "group") for k in (1, 2, 3, 4)]
