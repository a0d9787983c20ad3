"""How a session ends, and what its agent scores: in virtual time, without sockets."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from recipe.async_dapo.core.users_errors import Cause, TrajectoryFailed
from recipe.async_dapo.extensions.gateway.messages import Refused, Request
from recipe.async_dapo.extensions.gateway.session import Session

from ..support.world import QUESTION, Agent, Life, new_group, texts


async def nothing(session: Session, sample: dict[str, Any]) -> float:
    return 1.0


async def says_nothing(session: Session, sample: dict[str, Any]) -> str:
    await session.ask(Request(messages=[*QUESTION]))
    return "done"


async def crashes(session: Session, sample: dict[str, Any]) -> None:
    await says_nothing(session, sample)
    raise KeyError("oops")


async def hangs(session: Session, sample: dict[str, Any]) -> None:
    await says_nothing(session, sample)
    await asyncio.Event().wait()


async def posts_and_crashes(session: Session, sample: dict[str, Any]) -> None:
    await says_nothing(session, sample)
    session.post({"reward": 0.25})
    raise TrajectoryFailed("agent_failed", Cause("its own"))


async def posts_and_hangs(session: Session, sample: dict[str, Any]) -> None:
    with suppress(TrajectoryFailed):
        await posts_and_crashes(session, sample)
    await asyncio.Event().wait()


async def says_more(session: Session, sample: dict[str, Any]) -> dict[str, float]:
    await says_nothing(session, sample)
    return {"reward": 1.0, "steps": 2}


async def asks_for_what_it_does_not_get(session: Session, sample: dict[str, Any]) -> None:
    while True:
        with suppress(Refused):
            await session.ask(Request(messages=[]))


Case = tuple[Agent, dict[str, Any], str, float | None]


FAILURES: dict[str, Case] = {
    "asks nothing": (nothing, {}, "agent_without_turn", None),
    "asks nothing, and failures score 0": (nothing, {"on_failure": "score_zero"}, "agent_without_turn", None),
    "crashes": (crashes, {}, "generation_error", None),
    "is silent": (hangs, {"silence_s": 0.1}, "agent_silent", None),
    "is late": (hangs, {"time_limit_s": 0.1}, "agent_timeout", None),
    "is late, and what there is counts": (hangs, {"time_limit_s": 0.1, "on_time_limit": "score"}, "", 0.0),
    "is late, and failures score 0": (hangs, {"time_limit_s": 0.1, "on_failure": "score_zero"}, "", 0.0),
    "is late, and the function scores what there is": (
        hangs,
        {"time_limit_s": 0.1, "on_time_limit": "score", "reward": "function"},
        "",
        0.5,
    ),
    "is late, and what it has posted counts": (
        posts_and_hangs,
        {"time_limit_s": 0.1, "on_time_limit": "score", "on_failure": "score_zero"},
        "",
        0.25,
    ),
    "crashes behind its reward, and failures score 0": (posts_and_crashes, {"on_failure": "score_zero"}, "", 0.0),
    "crashes before the function scores, and failures score 0": (
        posts_and_crashes,
        {"on_failure": "score_zero", "reward": "function"},
        "",
        0.0,
    ),
    "lacks what groups are filtered by": (says_more, {"filtered_by": "right"}, "agent_without_result", None),
    "lacks that, and failures score 0": (says_more, {"filtered_by": "right", "on_failure": "score_zero"}, "", 0.0),
    "has what groups are filtered by": (says_more, {"filtered_by": "steps"}, "", 1.0),
    "has no result": (says_nothing, {}, "agent_without_result", None),
    "leaves the reward to the function": (says_nothing, {"reward": "function"}, "", 0.5),
    "is refused again and again": (asks_for_what_it_does_not_get, {}, "agent_refused", None),
}


@pytest.mark.parametrize("what", FAILURES)
async def test_given_an_agent_that_fails_then_its_reason_is_counted_and_it_never_counts_as_a_zero_unasked(
    what: str,
) -> None:
    agent, options, reason, score = FAILURES[what]
    group, life = new_group(1), Life(agent, n=1, says=texts("yes"), **options)
    outcome = await life.round(group)
    await life.end()
    assert outcome is not None and outcome.reason == reason, outcome and outcome.cause
    assert life.counted["gateway/sessions"] == 1 and life.counted["gateway/failed_sessions"] == bool(reason)
    if "filtered_by" in options and reason:
        assert "has only ['acc', 'steps'], and groups are filtered by right: return this" in outcome.cause.summary
    if score is not None:
        assert group.trajectories[0].outputs[-1].rest.reward_score == score


@pytest.mark.parametrize("result", [None, "yes", {"done": True}, {"reward": "much"}])
async def test_given_what_has_no_score_then_it_cannot_be_posted_and_what_was_posted_before_stays(result: Any) -> None:
    async def agent(session: Session, sample: dict[str, Any]) -> None:
        await says_nothing(session, sample)
        session.post(0.25)
        with pytest.raises(Refused, match="this has no reward"):
            session.post(result)

    group, life = new_group(1), Life(agent, n=1)
    outcome = await life.round(group)
    await life.end()
    assert outcome is not None and not outcome.reason, outcome and outcome.cause
    assert group.trajectories[0].outputs[-1].rest.reward_score == 0.25
