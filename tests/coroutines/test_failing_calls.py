"""Recorded calls that go wrong: they raise, hang, cancel themselves, or return what cannot be kept."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from verl.experimental.agent_loop import AgentLoopOutput

from recipe.async_dapo.calls import RecordedError, recorded
from recipe.async_dapo.config import ConfigError
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory

from ..support.rollout_world import N, call_runner, finished, group, outcome_of, rollout, stopped_at
from ..support.simulation import simulate


async def test_given_a_call_that_raises_or_hangs_then_the_loop_is_told_and_told_the_same_when_it_runs_again() -> None:
    told: list[str] = []

    async def raises() -> None:
        raise KeyError("no such account")

    async def hangs() -> None:
        await asyncio.sleep(10_000)

    async def loop(held: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        for call in (raises, hangs):
            try:
                await recorded(call)
            except RecordedError as error:
                told.append(str(error))
        await asyncio.sleep(60)
        return finished(trajectory)

    held = group()
    await stopped_at(rollout(loop), held, 100.0)
    await outcome_of(rollout(loop), held)
    assert Counter(told) == {"'no such account'": 8, "no answer within 60.0 s": 8}


async def test_given_a_call_that_cancels_itself_then_the_loop_is_told_and_it_is_not_made_again() -> None:
    told: list[str] = []
    made = 0

    async def cancels_itself() -> None:
        nonlocal made
        made += 1
        await asyncio.sleep(1)
        raise asyncio.CancelledError("its session is closed")

    async def loop(held: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        with pytest.raises(RecordedError, match="its session is closed") as raised:
            await recorded(cancels_itself)
        told.append(str(raised.value))
        await asyncio.sleep(60)
        return finished(trajectory)

    held = group()
    for _ in range(2):
        assert await stopped_at(rollout(loop), held, 10.0) is None
    assert (await outcome_of(rollout(loop), held)).verdict is Verdict.VALID
    assert (made, len(told)) == (N, 3 * N)


def test_given_a_result_that_no_checkpoint_could_hold_then_training_ends_although_the_loop_swallows_errors() -> None:
    async def loop(held: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        async with asyncio.TaskGroup() as calls:
            calls.create_task(recorded(object))
        return finished(trajectory)

    with pytest.raises(BaseExceptionGroup) as caught:
        simulate(rollout(loop).run(group()))
    assert caught.group_contains(ConfigError, match="is a builtins.object")


def test_given_more_results_than_the_journal_may_hold_then_the_trajectory_fails_and_is_counted() -> None:
    async def loop(held: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await recorded(bytes, 2000)
        return finished(trajectory)

    async def outcome(uid: str) -> GroupOutcome:
        running = rollout(loop)
        running._calls = call_runner(journal_limit_bytes=1000)
        return await outcome_of(running, replace(group(), uid=uid))

    one, other = simulate(outcome("one")), simulate(outcome("other"))
    assert (one.verdict, one.reason) == (Verdict.FAILED, "journal_full")
    assert one.cause == other.cause, "told once"
