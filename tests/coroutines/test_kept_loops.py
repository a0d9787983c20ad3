"""A loop that is kept over rounds, at its end: it is cancelled, or scored once."""

import asyncio
import logging
from typing import Any

import pytest
from verl.experimental.agent_loop import AgentLoopOutput

from recipe.async_dapo.calls import Recorder
from recipe.async_dapo.core.outcome import Verdict
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.rollout import agent_loops

from ..support.rollout_world import N, finished, group, outcome_of, rollout, stopped_at
from ..support.simulation import now_s, settle


async def test_given_a_loop_that_does_not_let_itself_be_cancelled_then_its_end_is_not_awaited_for_ever(caplog) -> None:
    released = asyncio.Event()

    async def run() -> list[AgentLoopOutput]:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return []

    loop = agent_loops.KeptLoop(Recorder(trajectory=Trajectory(session_id=0), prompt_uid="prompt-7"), run())
    await settle()  # it begins
    with caplog.at_level(logging.WARNING):
        await loop.end()
    assert "prompt-7" in caplog.text and now_s() == pytest.approx(agent_loops.END_TIMEOUT_S)
    released.set()
    await loop.outputs()
    await settle()


async def test_given_a_loop_that_makes_a_call_as_it_cleans_up_when_it_is_ended_then_nothing_waits_for_a_round() -> None:
    cleaned: list[str] = []

    async def run() -> list[AgentLoopOutput]:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await loop.next_round()
            finally:
                cleaned.append("yes")
        return []

    loop = agent_loops.KeptLoop(Recorder(trajectory=Trajectory(session_id=0), prompt_uid="prompt-7"), run())
    await settle()
    await loop.end()
    assert cleaned == ["yes"] and now_s() < 1.0


class Stateful:
    keeps_state = True

    async def run(self, sampling_params: dict[str, Any], *, trajectory: Trajectory) -> list[AgentLoopOutput]:
        return finished(trajectory)


async def test_given_a_loop_that_has_ended_when_rounds_stop_while_it_is_scored_then_it_is_scored_once() -> None:
    kept, scored = agent_loops.KeptLoops(most=N), []

    async def score(outputs: list[AgentLoopOutput], _: dict[str, Any]) -> None:
        scored.append(len(scored) % 2)
        outputs[-1].reward_score = scored[-1]
        outputs[-1].extra_fields["reward_extra_info"] = {"acc": scored[-1]}
        await asyncio.sleep(20)

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        return await kept.run(Stateful, {}, trajectory=trajectory)

    held = group()
    for _ in range(2):
        assert await stopped_at(rollout(loop, score, kept=kept), held, 3.5) is None
    assert (await outcome_of(rollout(loop, score, kept=kept), held)).verdict is Verdict.VALID
    assert (now_s(), len(scored)) == (20.0, N)
