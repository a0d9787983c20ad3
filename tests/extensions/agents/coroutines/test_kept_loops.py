"""A loop that is kept over rounds, at its end: it is cancelled, or scored once."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from verl.experimental.agent_loop import AgentLoopOutput

from recipe.async_dapo.calls import recorded, unknown_calls
from recipe.async_dapo.core.outcome import Verdict
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory, Turn
from recipe.async_dapo.extensions.agents import kept_loops
from recipe.async_dapo.extensions.agents.call_recorder import CallRecorder
from recipe.async_dapo.extensions.agents.journal import Journal
from recipe.async_dapo.record.plain_values import MAX_DEPTH
from recipe.async_dapo.recording import append_tokens, prompt_digest

from ....support.rollout_world import Loop, N, call_runner, finished, group, outcome_of, recorder, rollout, stopped_at
from ....support.simulation import now_s, settle


def new_recorder() -> CallRecorder:
    it: CallRecorder = call_runner().recorder(Trajectory(session_id=0), prompt_uid="prompt-7", attempt="")
    return it


async def test_given_a_loop_that_does_not_let_itself_be_cancelled_then_its_end_is_not_awaited_for_ever(caplog) -> None:
    released = asyncio.Event()

    async def run() -> list[AgentLoopOutput]:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return []

    loop = kept_loops.KeptLoop(
        call_runner().recorder(Trajectory(session_id=0), prompt_uid="prompt-7", attempt=""), run()
    )
    await settle()  # it begins
    with caplog.at_level(logging.WARNING):
        await loop.end()
    assert "prompt-7" in caplog.text and now_s() == pytest.approx(kept_loops.END_TIMEOUT_S)
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

    loop = kept_loops.KeptLoop(
        call_runner().recorder(Trajectory(session_id=0), prompt_uid="prompt-7", attempt=""), run()
    )
    await settle()
    await loop.end()
    assert cleaned == ["yes"] and now_s() < 1.0


class Asking:
    """A loop that makes one call, and takes a minute for its answer."""

    keeps_state = True

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    async def run(self, sampling_params: dict[str, Any], *, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await recorded(self._call)
        await asyncio.sleep(60)
        return finished(trajectory)


def asking(kept: kept_loops.KeptLoops, call: Callable[..., Any]) -> Loop:
    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        return await kept.run(lambda: Asking(call), {}, trajectory=trajectory)

    return loop


@pytest.mark.parametrize("has_happened", [False, True])
async def test_given_a_stop_while_recover_is_asked_then_a_kept_loop_goes_on_in_the_next_round_and_on_its_record(
    has_happened: bool,
) -> None:
    made: list[float] = []

    async def recover(call: str) -> int:
        await asyncio.sleep(10)
        if not has_happened:
            raise LookupError(call)
        return 2

    @unknown_calls("retry", recover)
    async def charge() -> int:
        made.append(now_s())
        return 2

    held, kept = group(), kept_loops.KeptLoops(most=N)
    for trajectory in held.trajectories:
        trajectory.is_restored = True
    assert await stopped_at(rollout(asking(kept, charge), kept=kept), held, 5.0) is None
    held = held.take_tokens()  # to the object store
    await asyncio.sleep(20)
    assert not made, "no call begins after the stop"
    assert await stopped_at(rollout(asking(kept, charge), kept=kept), held, 5.0) is None
    assert made == ([] if has_happened else [25.0] * N)
    [*calls] = [call for trajectory in held.trajectories for call in Journal.of(trajectory).calls.values()]
    assert len(calls) == N and all(call.result is not None for call in calls)
    await kept.end_others(frozenset())


@pytest.mark.parametrize("is_kept", [False, True])
async def test_given_a_carried_call_that_its_trajectory_fails_of_then_it_is_not_made_again(is_kept: bool) -> None:
    made = 0

    async def answer() -> Any:
        nonlocal made
        made += 1
        await asyncio.sleep(10)
        deep: list[Any] = []
        for _ in range(MAX_DEPTH):
            deep = [deep]
        return deep

    held, kept, ended = group(), kept_loops.KeptLoops(most=N if is_kept else 0), kept_loops.KeptLoops()
    assert await stopped_at(rollout(asking(ended, answer), kept=ended), held, 5.0) is None
    held = held.take_tokens()
    if is_kept:  # it waits in another worker, and the answer comes between two rounds
        assert await stopped_at(rollout(asking(kept, answer), kept=kept), held, 2.0) is None
        held = held.take_tokens()
        await asyncio.sleep(10)
    outcome = await outcome_of(rollout(asking(kept, answer), kept=kept), held)
    assert (outcome.verdict, outcome.reason, made) == (Verdict.FAILED, "nested_too_deep", N)


class Untidy:
    """The second of a group comes to rest, the first one there is no room for, and the third one fails."""

    keeps_state = True

    async def run(self, sampling_params: dict[str, Any], *, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await asyncio.sleep([2, 1, 3, 100][trajectory.session_id])
        if trajectory.session_id == 2:
            raise KeyError("refused")
        if trajectory.session_id < 2:
            recorder().begin_turn([99])  # another than the recorded one
            recorder().stop()
            try:
                await recorder().next_round()
            finally:
                await asyncio.sleep(10)
        return finished(trajectory)


async def test_given_a_loop_that_is_being_ended_when_a_sibling_fails_then_what_it_had_recorded_counts_as_lost() -> None:
    held, kept = group(), kept_loops.KeptLoops(most=1)
    turn = Turn(prompt_digest=prompt_digest([0]), prompt_len_tok=1)
    append_tokens(turn, [7, 8], [0.0] * 2, [(0, 2)])
    held.trajectories[0].turns.append(turn)

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        return await kept.run(Untidy, {}, trajectory=trajectory)

    running = rollout(loop, kept=kept)
    assert (await outcome_of(running, held)).verdict is Verdict.FAILED
    assert running.take_report().counts.diverged_tok == 2
    assert now_s() == 12.0, "the group has ended when its loops have"
    await kept.end_others(frozenset())


class Stateful:
    keeps_state = True

    async def run(self, sampling_params: dict[str, Any], *, trajectory: Trajectory) -> list[AgentLoopOutput]:
        return finished(trajectory)


async def test_given_a_loop_that_has_ended_when_rounds_stop_while_it_is_scored_then_it_is_scored_once() -> None:
    kept, scored = kept_loops.KeptLoops(most=N), []

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
