"""Whatever tools and agent loops of the user's raise is an error of their call, and no more of it than of an answer."""

import asyncio
import logging
from functools import partial
from types import SimpleNamespace

import pytest
from verl.experimental.agent_loop import AgentLoopOutput

from recipe.async_dapo.calls import RecordedError, recorded, unknown_calls
from recipe.async_dapo.core.outcome import Verdict
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.extensions.agents.kept_loops import KeptLoops
from recipe.async_dapo.extensions.agents.loops import cut
from recipe.async_dapo.runtime.containment import contain_tasks

from ....coroutines.test_containment import awaited, exits, hook_is_put_back, kinds  # noqa: F401
from ....support.rollout_world import (
    N,
    call_runner,
    calls_of,
    finished,
    group,
    outcome_of,
    recorder,
    rollout,
    stopped_at,
)


@exits
@kinds
async def test_given_a_call_that_exits_when_it_is_recorded_then_its_loop_is_told_and_it_is_counted(error, raises):
    contain_tasks()
    told: list[str] = []

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        try:
            await recorded(partial(raises, error))
        except RecordedError as answer:
            told.append(str(answer))
        return finished(trajectory)

    running = rollout(loop)
    assert (await outcome_of(running)).verdict is Verdict.VALID
    assert told == [repr(error)] * N and calls_of(running).failed == N


@pytest.mark.slow
@exits
@kinds
@pytest.mark.parametrize("keeps_state", [True, False])
async def test_given_an_agent_loop_that_exits_then_its_group_fails_and_says_where(error, raises, keeps_state):
    contain_tasks()
    kept = KeptLoops(most=2)
    agent_loop = SimpleNamespace(keeps_state=keeps_state, run=lambda parameters, **_: raises(error))
    outcome = await outcome_of(rollout(lambda *_: kept.run(lambda: agent_loop, {}), kept=kept))
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "generation_error")
    assert (
        outcome.cause is not None
        and repr(error) in outcome.cause.summary
        and "test_containment.py" in outcome.cause.summary
    )


@exits
async def test_given_recover_that_exits_then_its_trajectory_fails(error):
    @unknown_calls("retry", partial(awaited, error))
    async def hangs() -> None:
        await asyncio.sleep(1e6)

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await recorded(hangs)
        return finished(trajectory)

    held = group()
    assert await stopped_at(rollout(loop, carries=False), held, 5.0) is None
    for trajectory in held.trajectories:
        trajectory.is_restored = True
    assert (await outcome_of(rollout(loop), held)).verdict is Verdict.FAILED


@pytest.mark.parametrize(("side", "kept"), [("left", "...z"), ("right", "aa..."), ("middle", "a...")])
async def test_given_a_call_with_an_error_of_megabytes_then_the_loop_and_the_log_get_as_much_as_of_an_answer(
    side, kept, caplog
):
    async def raises() -> None:
        raise ValueError("a" * 2_000_000 + "z" * 2_000_000)

    runner = call_runner(cut=partial(cut, most=100, side=side))
    told: list[str] = []

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        recorder().runner = runner
        with pytest.raises(RecordedError) as raised:
            await recorded(raises)
        told.append(str(raised.value))
        return finished(trajectory)

    with caplog.at_level(logging.WARNING):
        await outcome_of(rollout(loop))
    assert {len(text) for text in told} == {100 + len("...(truncated)...")} and kept in told[0]
    assert 0 < len(caplog.text) < 10_000
