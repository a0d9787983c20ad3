"""Sessions in virtual time: whatever stops, is lost or killed, rows are what the model said, and nothing is lost."""

import asyncio
import logging
import re
from random import Random
from typing import Any

import pytest

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo.core.users_errors import Cause, KnownPlaces, TrajectoryFailed
from recipe.async_dapo.extensions.gateway import black_box
from recipe.async_dapo.extensions.gateway.messages import Refused, Request, meaning, tool_call
from recipe.async_dapo.extensions.gateway.session import Session
from recipe.async_dapo.rollout.packed_output import TIMED

from ....support.rollout_world import reread
from ..support.world import QUESTION, TOKENIZER, Life, check_rows, new_group, rows_of, shown

SEEDS = [pytest.param(seed, marks=[pytest.mark.nightly] if seed >= 24 else []) for seed in range(250)]


async def ask(session: Session, messages: list[Any]) -> dict[str, Any]:
    return (await session.ask(Request(messages=messages))).reply.result().message


def turn(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def talker(session: Session, sample: dict[str, Any]) -> float:
    """Three turns, with tools of half a second in between."""
    messages = [*QUESTION, turn(str(sample["session_id"]))]
    for number in range(3):
        messages += [await ask(session, messages), turn(f"go {number}")]
        await asyncio.sleep(0.5)
    return float(sample["session_id"] % 2)


async def branching(session: Session, sample: dict[str, Any]) -> float:
    """Sub-agents side by side, which begin in any order and take any time; one of them branches; then a last word."""
    chance = Random()
    messages = [*QUESTION, turn(str(sample["session_id"]))]
    first = await ask(session, messages)

    async def sub(number: int) -> None:
        own: list[Any] = [turn(f"part {number} of {sample['session_id']}")]
        for step in range(2):
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            own += [await ask(session, own), turn(f"step {step}")]
        if number == 1:
            await ask(session, [*own[:2], turn("other words")])

    async with asyncio.TaskGroup() as subs:
        for number in chance.sample(range(3), 3):
            subs.create_task(sub(number))
    await ask(session, [*messages, first, turn("so?")])
    return float(sample["session_id"] % 2)


HAS_CHAINS = "chains" in declared()  # else each turn is a row
AGENTS = {"talker": (talker, 1 if HAS_CHAINS else 3), "branching": (branching, 5 if HAS_CHAINS else 9)}


async def finished(life: Life, group: PromptGroup) -> list[Any]:
    outcome = await life.round(group)
    assert outcome is not None and not outcome.reason, outcome and outcome.cause
    check_rows(group)
    await life.end()
    return rows_of(group)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", AGENTS)
async def test_given_stops_losses_and_kills_then_rows_are_as_without_them_and_each_turn_is_sampled_once(
    name: str, seed: int
) -> None:
    agent, rows = AGENTS[name]
    random, whole = Random(seed), new_group()
    expected = await finished(Life(agent), whole)
    group, life = new_group(), Life(agent)
    for _ in range(200):
        if await life.round(group, random.uniform(0.01, 1.5)) is not None:
            break
        assert life.diverged_tok == 0
        what = random.choice(["kept", "kept", "parked", "lost", "killed"])
        if what == "parked":
            group = group.take_tokens()
        if what in ("lost", "killed"):
            await life.end()
        if what == "killed":
            group = reread(group)
            life = Life(agent, version=life.server.global_steps)
        await asyncio.sleep(random.uniform(0.0, 1.0))
    check_rows(group)
    assert rows_of(group) == expected
    assert [len(trajectory.outputs) for trajectory in group.trajectories] == [rows] * 4
    sampled_tok = sum(trajectory.generated_tok for trajectory in group.trajectories)
    assert sampled_tok == sum(trajectory.generated_tok for trajectory in whole.trajectories)
    await life.end()


async def test_given_the_round_stops_in_a_turn_then_its_request_stays_open_and_has_tokens_of_two_versions() -> None:
    group, life = new_group(), Life(talker)
    assert await life.round(group, 0.1) is None
    await asyncio.sleep(30)
    await finished(life, group)
    assert all(len(box.session.counts) and box.session.counts["requests"] == 3 for box in life.boxes)
    assert len(life.boxes) == 4, "no agent was started again"
    rows = [output for trajectory in group.trajectories for output in trajectory.outputs]
    assert any(len(row.stamps) > 1 for row in rows)
    timed = [turn for row in rows for turn in row.rest.extra_fields[TIMED]]
    assert len(timed) == 12 and {len(turn) for turn in timed} == {1, 2}, "three turns each, some of two requests"
    assert all(server == "a" for turn in timed for server, *_ in turn)
    assert sum(tokens for turn in timed for *_, tokens in turn) == sum(one.generated_tok for one in group.trajectories)


async def test_given_several_rows_then_each_has_the_times_of_the_turns_that_it_trains() -> None:
    group, life = new_group(), Life(branching)
    await finished(life, group)
    for trajectory in group.trajectories:
        turns = [row.rest.extra_fields[TIMED] for row in trajectory.outputs]
        assert sum(map(len, turns)) == 9 and all(turns)
        for row, timed in zip(trajectory.outputs, turns, strict=True):
            assert sum(tokens for turn in timed for *_, tokens in turn) == sum(row.response_mask)


async def test_given_many_sessions_then_all_are_kept_whatever_the_limit_of_kept_loops() -> None:
    group, life = new_group(), Life(talker, most=1)
    for _ in range(99):
        if await life.round(group, 0.3) is not None:
            break
        await asyncio.sleep(1)
    assert len(life.boxes) == 4
    await life.end()


async def test_given_an_agent_that_fails_between_two_rounds_then_its_session_is_counted_in_the_next() -> None:
    async def late(session: Session, sample: dict[str, Any]) -> None:
        await ask(session, [*QUESTION])
        await asyncio.sleep(5)
        raise TrajectoryFailed("agent_failed", Cause("late"))

    group, life = new_group(1), Life(late, n=1)
    assert await life.round(group, 2.0) is None
    await asyncio.sleep(30)
    assert not life.counted
    outcome = await life.round(group)
    assert outcome is not None and outcome.reason == "agent_failed"
    assert life.counted["gateway/failed_sessions"] == life.counted["gateway/requests"] == 1
    await life.end()


async def test_given_a_session_that_closes_as_a_request_comes_in_then_its_client_is_told() -> None:
    async def closed(session: Session, sample: dict[str, Any]) -> float:
        await ask(session, [*QUESTION])
        late = asyncio.create_task(session.ask(Request(messages=[turn("late")])))
        await asyncio.sleep(0)  # it has come in, and its turn has not begun
        await session.close()
        with pytest.raises(Refused, match="the session is over"):
            await late
        return 1.0

    await finished(Life(closed, n=1), new_group(1))


async def test_given_a_loop_that_is_cancelled_again_while_its_agent_ends_then_its_session_closes() -> None:
    async def slow_to_end(session: Session, sample: dict[str, Any]) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(5)

    box = Life(slow_to_end, n=1)._make()
    running = asyncio.create_task(box.run({}, raw_prompt=QUESTION))
    await box.opened
    for _ in range(2):
        running.cancel()
        await asyncio.sleep(1)
    assert running.done()
    with pytest.raises(Refused, match="the session is over"):
        await ask(box.session, [*QUESTION])
    await asyncio.sleep(5)


async def test_given_an_equal_request_before_a_reply_is_written_then_it_is_a_sample_of_its_own() -> None:
    async def agent(session: Session, sample: dict[str, Any]) -> float:
        request = Request(messages=[*QUESTION])
        first = await session.ask(request)  # its client is still to be written to
        assert await session.ask(request) is not first
        session.undelivered(first)
        assert await session.ask(request) is first, "it has gone, and asks again"
        return 1.0

    group, life = new_group(1), Life(agent, n=1)
    await finished(life, group)
    assert life.server.requests == 2 and life.boxes[0].session.counts["resent"] == 1


async def test_given_discard_then_agents_end_with_the_round_and_start_again_from_nothing() -> None:
    group, life = new_group(), Life(talker, most=0)
    assert await life.round(group, 0.3) is None
    assert all(task.get_name() != "agent" for task in asyncio.all_tasks())
    assert group.restart() > 0
    assert await finished(life, group) == await finished(Life(talker), new_group())
    assert len(life.boxes) == 8


async def test_given_agents_that_cannot_run_again_when_their_process_is_gone_then_their_group_is_lost() -> None:
    group, life = new_group(), Life(talker, replayable=False)
    for _ in range(2):  # they stay over a stop
        assert await life.round(group, 0.3) is None
        assert not group.is_lost
    await life.end()
    group = reread(group)
    assert all(one.is_lost for one in group.trajectories), "the pool retires it, and draws its prompt again"
    outcome = await Life(talker, replayable=False).round(group)
    assert outcome is not None and outcome.reason == "state_lost"


def clock(ticks: list[int], role: str) -> Any:
    async def agent(session: Session, sample: dict[str, Any]) -> float:
        messages = [turn(f"who are you? time {len(ticks)}")]
        for _ in range(3):
            ticks.append(0)
            messages += [await ask(session, messages), {"role": role, "content": f"go on. time {len(ticks)}"}]
            await asyncio.sleep(0.3)
        return 1.0

    return agent


@pytest.mark.parametrize("ignored", [[], [r"time .*"]])
@pytest.mark.parametrize("role", ["user", "critic"])  # no builder appends the second
async def test_given_a_time_in_the_prompt_when_its_agent_runs_again_then_it_goes_on_if_times_are_ignored(
    role: str, ignored: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(black_box, "_logged", KnownPlaces())
    caplog.set_level(logging.WARNING)
    group, ticks, lost_tok = new_group(1), list[int](), 0
    for rounds in range(9):
        life = Life(clock(ticks, role), n=1, version=rounds, ignored=ignored)
        is_ended = await life.round(group, 0.5 if rounds < 4 else None) is not None
        lost_tok += life.diverged_tok
        await life.end()
        if is_ended:
            break
        group = reread(group)
    check_rows(group)
    assert (lost_tok == 0) == bool(ignored)
    if not ignored:
        assert "has asked for something else when it ran again" in caplog.text and "time" in caplog.text
    else:
        assert "time 0" in shown_prompt(group), "the first words stay"


def test_given_patterns_that_are_ignored_then_each_acts_within_one_text_of_a_message() -> None:
    def said(message: dict[str, Any]) -> str:
        return meaning(message, lambda text: re.sub(r"time: .*|/tmp/\S+", "", text))

    assert said(turn("time: 1\nGo.")) == said(turn("time: 2\nGo.")) != said(turn("time: 1\nStop."))
    assert said(turn("time: 1")) != said({"role": "system", "content": "time: 1"})
    results = [{"role": "tool", "content": "/tmp/a", "tool_call_id": name} for name in ("first", "second")]
    assert said(results[0]) != said(results[1])
    calls = [tool_call("c", "look", f'{{"at": "/tmp/{name}", "deep": {depth}}}') for name, depth in ("a1", "b1", "b2")]
    one, same, other = ({"role": "assistant", "content": "so", "tool_calls": [call]} for call in calls)
    assert said(one) == said(same) != said(other)


@pytest.mark.parametrize("seed", range(6))
async def test_given_the_time_in_prompts_of_sub_agents_that_ask_in_another_order_then_nothing_is_lost(
    seed: int,
) -> None:
    random, ticks = Random(seed), iter(range(10**6))

    async def agent(session: Session, sample: dict[str, Any]) -> float:
        async def sub(number: int) -> None:
            own: list[Any] = [turn(f"part {number}. time {next(ticks)}")]
            for _ in range(3):
                await asyncio.sleep(random.uniform(0.0, 0.5))
                own += [await ask(session, own), turn(f"go on. time {next(ticks)}")]  # all of them say the same

        async with asyncio.TaskGroup() as subs:
            for number in random.sample(range(3), 3):
                subs.create_task(sub(number))
        return 1.0

    group = new_group(1)
    for rounds in range(99):
        life = Life(agent, n=1, version=rounds, ignored=[r"time \d+"])
        is_ended = await life.round(group, random.uniform(0.2, 1.5)) is not None
        assert life.diverged_tok == 0
        await life.end()
        if is_ended:
            break
        group = reread(group)
    check_rows(group)
    assert len(group.trajectories[0].outputs) == (3 if HAS_CHAINS else 9)


def shown_prompt(group: PromptGroup) -> str:
    return TOKENIZER.decode(group.trajectories[0].outputs[0].prompt_ids)


async def test_given_a_session_then_it_waits_in_calls_while_its_agent_is_busy_and_goes_on_when_it_asks() -> None:
    async def slow(session: Session, sample: dict[str, Any]) -> float:
        messages = [*QUESTION]
        messages += [await ask(session, messages), turn("more")]
        await asyncio.sleep(20)
        await ask(session, messages)
        return 1.0

    group, life = new_group(1), Life(slow, n=1)
    await finished(life, group)
    assert [event.name for event in life.events] == ["IDLE", "GOES_ON", "GENERATED"]
    assert "".join(shown(group)).count("[") == 2
