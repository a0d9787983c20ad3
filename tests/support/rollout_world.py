"""Prompt groups of four with scripted agent loops and scores."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.config.values import OnRewardError
from recipe.async_dapo.core.ledger import Ledger
from recipe.async_dapo.core.outcome import GroupOutcome
from recipe.async_dapo.core.pool import PoolState
from recipe.async_dapo.core.round import GroupEvent
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.recording import TrajectoryRecorder, append_tokens, current_recorder
from recipe.async_dapo.rollout.agent_loops import Loops
from recipe.async_dapo.rollout.group_rollout import GroupRollout
from recipe.async_dapo.rollout.reward import RewardScorer
from recipe.async_dapo.rollout.validation import ValidationRollout
from recipe.async_dapo.training.checkpoints import RolloutState, from_frames, to_frames

from .fake_handle import FakeHandle
from .scripted_reward import ScriptedReward, reward_options

N = 4
Loop = Callable[[PromptGroup, Trajectory], Awaitable[list[AgentLoopOutput]]]


def group() -> PromptGroup:
    return PromptGroup(
        uid="group", prompt={}, drawn_at_step=1, trajectories=[Trajectory(session_id=k) for k in range(N)]
    )


def reread(held: PromptGroup) -> PromptGroup:
    """The group as a checkpoint brings it back, in new processes; what is under way has not arrived."""
    pool = PoolState(waiting=(held,), buffered=(), carried=(), ledger=Ledger())
    with pytest.MonkeyPatch.context() as patched:
        if "agents" in declared():
            from recipe.async_dapo.extensions.agents import journal

            patched.setattr(journal, "ray", SimpleNamespace(wait=lambda references, **_: ([], references)))
        return from_frames(to_frames(RolloutState(pool=pool))).pool.waiting[0]


async def outcome_of(rollout: GroupRollout, held: PromptGroup | None = None) -> GroupOutcome:
    """Of a group that is not interrupted."""
    outcome = await rollout.run(held or group())
    assert outcome is not None
    return outcome


async def stopped_at(running: GroupRollout, held: PromptGroup, time_s: float) -> GroupOutcome | None:
    """What becomes of a group when the round stops then."""
    task = asyncio.create_task(running.run(held))
    await asyncio.sleep(time_s)
    running.running.interrupt()
    return await task


def recorder() -> TrajectoryRecorder:
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
    output = AgentLoopOutput(
        prompt_ids=[1],
        response_ids=[7] * tokens,
        response_mask=[1] * tokens,
        response_logprobs=[0.0] * tokens,
        metrics=metrics,
    )
    return [output]


async def quick(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
    await asyncio.sleep(1 + trajectory.session_id)
    return finished(trajectory)


scores = ScriptedReward  # of the sessions, in order of completion


def call_runner(timeout_s: float = 60.0, journal_limit_bytes: int = 2**20, kept: Any = None, **options: Any) -> Any:
    """The loops of one worker, in a copy with agents."""
    from recipe.async_dapo.extensions.agents.kept_loops import KeptLoops
    from recipe.async_dapo.extensions.agents.loops import LoopsOfWorker

    runner = LoopsOfWorker(
        kept or KeptLoops(),
        timeout_s=timeout_s,
        journal_limit_bytes=journal_limit_bytes,
        promise=lambda call_id: FakeHandle(runner).result_of.remote(call_id),
        **options,
    )
    return runner


def calls_of(running: GroupRollout) -> Any:
    """What has been counted of calls since this was asked last, in a copy with agents."""
    from recipe.async_dapo.extensions.agents.counts import CallCounts

    return CallCounts.of(running.take_report().counts)


def as_workers_run(loop: Loop) -> Loop:
    """A loop that a test runs itself, and not by the loops of a worker."""
    if "agents" not in declared():
        return loop
    from recipe.async_dapo.extensions.agents.kept_loops import outputs_of

    async def run(held: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        current: Any = recorder()
        return await outputs_of(current, loop(held, trajectory))

    return run


def rollout(
    loop: Loop = quick,
    compute_score: Any = None,
    *,
    on_error: OnRewardError = OnRewardError.DROP_GROUP,
    is_filtered: bool = True,
    keeps_failures: bool = False,
    kept: Any = None,
    carries: bool = True,
    notify: Callable[[str, GroupEvent], None] = lambda uid, event: None,
) -> GroupRollout:
    reward = reward_options(on_error=on_error)
    options: Any = SimpleNamespace(
        reward=reward,
        reward_function="compute_score of reward.py",
        filter=SimpleNamespace(metric="acc" if is_filtered else None),
        max_tokens_per_round=None,
    )
    scorer = RewardScorer(compute_score or scores(0, 1, 0, 1), options=options)
    kind = ValidationRollout if keeps_failures else GroupRollout
    return kind(
        as_workers_run(loop),
        scorer,
        loops=call_runner(kept=kept, carries=carries) if "agents" in declared() else Loops(),
        options=options,
        notify=notify,
    )
