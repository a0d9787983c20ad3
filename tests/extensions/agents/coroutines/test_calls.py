"""Recorded calls: made once, over stops, kills and checkpoints; a tool says what becomes of one that may have been.
Some raise, hang, cancel themselves, or return what cannot be kept.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from verl.experimental.agent_loop import AgentLoopOutput

from recipe.async_dapo.calls import RecordedError, call_id, recorded, unknown_calls
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.extensions.agents.journal import Journal
from recipe.async_dapo.extensions.agents.kept_loops import KeptLoops
from recipe.async_dapo.record.plain_values import MAX_DEPTH

from ....support.client_world import world
from ....support.rollout_world import (
    Loop,
    N,
    call_runner,
    calls_of,
    finished,
    group,
    outcome_of,
    reread,
    rollout,
    stopped_at,
)
from ....support.simulation import now_s, simulate


@dataclass
class Service:
    """Outside of the run: it outlives every process of it."""

    takes_s: float = 10.0
    charged: Counter[str] = field(default_factory=Counter)
    answers: list[Any] = field(default_factory=list)

    async def charge(self, amount: int) -> int:
        self.charged[call_id()] += 1
        await asyncio.sleep(self.takes_s)
        return 2 * amount

    async def recover(self, call: str) -> int:
        if call not in self.charged:
            raise LookupError(call)
        return 2

    @property
    def is_charged_once(self) -> bool:
        return set(self.charged.values()) == {1}


def asking(service: Service, function: Callable[..., Any] | None = None) -> Loop:
    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        service.answers.append(await recorded(function or service.charge, 1))
        return finished(trajectory)

    return loop


def free_function(service: Service) -> Any:
    async def charge(amount: int) -> int:
        return await service.charge(amount)

    return charge


async def killed(loop: Loop, *, goes_on_s: float = 0.0) -> PromptGroup:
    """The checkpoint of a run that was killed, so long after it and with calls that have come to their end."""
    held = group()
    assert await stopped_at(rollout(loop), held, 5.0) is None
    saved = reread(held)
    if goes_on_s:
        assert await stopped_at(rollout(loop), held, goes_on_s) is None
    await asyncio.sleep(10.0)
    return saved


# Calls that are in the checkpoint, and others, of loops that had generated something by then, or nothing.
@pytest.mark.parametrize(("goes_on_s", "has_begun"), [(0.0, True), (8.0, True), (8.0, False)])
def test_given_a_kill_when_calls_were_under_way_then_the_tool_is_asked_for_what_they_came_to(
    goes_on_s: float, has_begun: bool
) -> None:
    service = Service()
    charge = unknown_calls("fail_trajectory" if goes_on_s == 0 else "retry", service.recover)(free_function(service))

    async def loop(held: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        outputs = finished(trajectory) if has_begun else None
        await asyncio.sleep(0.75 * goes_on_s)
        service.answers.append(await recorded(charge, 1))
        return outputs or finished(trajectory)

    saved = simulate(killed(loop, goes_on_s=goes_on_s))
    assert any(Journal.of(trajectory).calls for trajectory in saved.trajectories) == (goes_on_s == 0)
    assert saved.has_started == has_begun
    running = rollout(loop)
    assert simulate(outcome_of(running, saved)).verdict is Verdict.VALID
    assert service.is_charged_once and len(service.charged) == 4 and service.answers == [2, 2, 2, 2]
    assert calls_of(running).unknown == (4 if goes_on_s == 0 else 0)


@pytest.mark.parametrize(("when_unknown", "verdict"), [("retry", Verdict.VALID), ("fail_trajectory", Verdict.FAILED)])
def test_given_a_kill_when_nobody_can_be_asked_then_the_tool_s_policy_acts(when_unknown: str, verdict: Verdict) -> None:
    service = Service()
    loop = asking(service, unknown_calls(when_unknown)(free_function(service)))
    outcome = simulate(outcome_of(rollout(loop), simulate(killed(loop))))
    assert outcome.verdict is verdict
    assert set(service.charged.values()) == ({2} if verdict is Verdict.VALID else {1}) and len(service.charged) == 4
    assert (outcome.reason == "unknown_call") == (verdict is Verdict.FAILED)
    if outcome.cause is not None:
        assert outcome.cause.place == "it is not known whether a call of free_function.<locals>.charge has happened"


@pytest.mark.parametrize("hangs", [True, False])
async def test_given_a_kill_when_recover_never_answers_then_the_trajectory_fails_at_the_limit(hangs: bool) -> None:
    """Or cancels itself: then its trajectory fails at once."""
    service = Service()

    async def recover(call: str) -> int:
        if hangs:
            await asyncio.sleep(1e6)
        raise asyncio.CancelledError

    loop = asking(service, unknown_calls("retry", recover)(free_function(service)))
    outcome = await outcome_of(rollout(loop), await killed(loop))
    assert outcome.verdict is Verdict.FAILED
    assert outcome.reason == ("unknown_call" if hangs else "generation_error")
    assert hangs == ("recover of free_function.<locals>.charge gave no answer" in str(outcome.cause))
    assert now_s() == 5.0 + 10.0 + (60.0 if hangs else 0.0)


class Unrepeatable:
    """A loop with an environment that it cannot bring back to where it was."""

    def __init__(self, service: Service, replayable: Any = False) -> None:
        self.service, self.replayable = service, replayable

    async def run(self, sampling_params: dict[str, Any], *, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await recorded(self.service.charge, 1)
        outputs = finished(trajectory)
        await recorded(self.service.charge, 2)
        return outputs


@pytest.mark.parametrize("replayable", [False, None, 0])
async def test_given_a_loop_that_cannot_be_repeated_when_it_is_gone_then_it_is_not_run_again(replayable: Any) -> None:
    """The pool retires its group before; see test_cluster_kept_loops.py."""
    service, kept = Service(), KeptLoops(most=0)

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        return await kept.run(lambda: Unrepeatable(service, replayable), {}, trajectory=trajectory)

    held = group()
    assert await stopped_at(rollout(loop, kept=kept), held, 15.0) is None
    assert all(one.is_lost for one in [*held.trajectories, *reread(held).trajectories])
    outcome = await outcome_of(rollout(loop, kept=kept), held)
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "state_lost")
    assert service.is_charged_once
    await asyncio.sleep(60)


def test_given_a_recover_that_blocks_then_the_worker_goes_on_meanwhile() -> None:
    service, others_ran = Service(), threading.Event()
    running_loop = asyncio.new_event_loop()

    def recover(_: str) -> int:
        running_loop.call_soon_threadsafe(others_ran.set)
        return 2 if others_ran.wait(timeout=60) else 0

    loop = asking(service, unknown_calls("retry", recover)(free_function(service)))
    left = simulate(killed(loop))
    assert running_loop.run_until_complete(outcome_of(rollout(loop), left)).verdict is Verdict.VALID
    running_loop.close()
    assert service.answers == [2] * 4


async def test_given_a_call_that_raises_or_hangs_then_the_loop_is_told_and_told_the_same_when_it_runs_again(
    caplog,
) -> None:
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

    held, rollouts = group(), [rollout(loop), rollout(loop)]
    with caplog.at_level(logging.WARNING):
        await stopped_at(rollouts[0], held, 100.0)
    await outcome_of(rollouts[1], held)
    assert Counter(told) == {"'no such account'": 8, "no answer within 60.0 s": 8}
    counts = [calls_of(rollout) for rollout in rollouts]
    assert [(one.answered, one.failed) for one in counts] == [(8, 8), (0, 0)], "an answer of the record is none"
    figures = {name.rpartition(".")[2]: own for name, own in counts[0].by_name.items()}
    assert {name: (own.calls, own.failed) for name, own in figures.items()} == {"raises": (4, 4), "hangs": (4, 4)}
    assert not counts[1].by_name
    assert [line.split(" failed,")[0].rpartition(".")[2] for line in caplog.messages] == ["raises", "hangs"], (
        "once each"
    )


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


async def test_given_a_call_that_generates_then_training_ends_with_its_name() -> None:
    client = world().client

    async def ask() -> Any:
        return await client.generate("request", prompt_ids=[1], sampling_params={})

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await recorded(ask)
        return finished(trajectory)

    with pytest.raises(BaseExceptionGroup) as caught:
        await rollout(loop).run(group())
    assert caught.group_contains(ConfigError, match=r"agent loop=\S*\.ask: this recorded call calls generate")


async def test_given_trajectories_that_wait_for_calls_then_the_report_says_how_many_over_time() -> None:
    running = rollout(asking(Service()))
    await outcome_of(running)
    times, counts = zip(*calls_of(running).idle[0], strict=True)
    assert max(counts) == N and counts[-1] == 0 and list(times) == sorted(times)
    assert not calls_of(running).idle, "none was idle since then"


def test_given_more_results_than_the_journal_may_hold_then_the_trajectory_fails_and_is_counted() -> None:
    async def loop(held: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await recorded(bytes, 2000)
        return finished(trajectory)

    async def outcome(uid: str) -> GroupOutcome:
        running = rollout(loop)
        running._loops = call_runner(journal_limit_bytes=1000)
        return await outcome_of(running, replace(group(), uid=uid))

    one, other = simulate(outcome("one")), simulate(outcome("other"))
    assert (one.verdict, one.reason) == (Verdict.FAILED, "journal_full")
    assert one.cause == other.cause, "told once"


@pytest.mark.parametrize("is_result", [False, True])
async def test_given_calls_nested_too_deep_when_a_policy_has_written_them_then_the_group_fails_and_training_goes_on(
    is_result: bool,
) -> None:
    deep: list[Any] = []
    for _ in range(MAX_DEPTH):
        deep = [deep]

    async def loop(held: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await (recorded(lambda: deep) if is_result else recorded(len, deep))
        return finished(trajectory)

    outcome = await outcome_of(rollout(loop), group())
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "nested_too_deep")
