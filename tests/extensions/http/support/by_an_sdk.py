"""What holds for whatever API an agent asks by: checks that each API's tests make with its vendor's SDK."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import Any

import pytest

from recipe.async_dapo.core.users_errors import KnownPlaces
from recipe.async_dapo.extensions.gateway.session import Session
from recipe.async_dapo.extensions.http import server

from ...gateway.support.played import play
from ...gateway.support.world import texts

Ask = Callable[..., Awaitable[str]]  # of address, key, and options of the SDK: what the model says to a question
ANSWER_TOK, TOKEN_S, LIMIT_S, PINGS_S = 20, 0.2, 2.0, 0.1  # a machine may stand still for nearly as long as the limit
WHERE = ("before its turn", "behind its turn")


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Its first call fails in a way that nobody has thought of."""
    whole, calls = getattr(owner, name), iter([IndexError("unheard of")])

    def fails_first(*args: Any, **kwargs: Any) -> Any:
        for error in calls:
            raise error
        return whole(*args, **kwargs)

    monkeypatch.setattr(owner, name, fails_first)


def check_errors_are_told(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
    *,
    ask: Ask,
    writes: tuple[ModuleType, str],
    errors: tuple[type[Exception], type[Exception]],
    kind: Callable[[Any], str],
) -> None:
    """An error of the gateway itself is told in the API's form, its agent may ask again, and it counts.

    Args:
        where: one of `WHERE`.
        writes: a function of the API's that writes replies, and its module.
        errors: of the SDK: for a status, and for a connection that has ended.
        kind: of an error, as the API names it.
    """
    monkeypatch.setattr(server, "_logged", KnownPlaces())
    once(monkeypatch, *((Session, "_exchange_of") if where == "before its turn" else writes))

    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        of_status, of_connection = errors
        if where == "before its turn":
            with pytest.raises(of_status) as told:
                await ask(address, key, max_retries=0)
            error: Any = told.value
            assert error.status_code == 500 and "the gateway has failed: IndexError" in error.message
            assert kind(error) in ("server_error", "api_error")
        else:  # a reply has begun: too late for a status
            with pytest.raises(of_connection):
                await ask(address, key, max_retries=0)
        assert await ask(address, key) == "yes"
        return 1.0

    outcome, group, life = play(agent, says=texts("yes"))
    assert not outcome.reason, outcome.cause
    assert life.counted["gateway/errors"] == 1 and life.counted["gateway/failed_sessions"] == 0
    assert life.server.requests == len(group.trajectories[0].outputs) == 1, "the turn is sampled once"
    assert "the gateway has failed at a request to /v1/" in caplog.text and "unheard of" in caplog.text


def check_a_late_refusal_is_told(monkeypatch: pytest.MonkeyPatch, ask: Ask, error: type[Exception]) -> None:
    """A request that is refused when its reply has begun: the client raises the API's error, and the agent goes on.

    Args:
        ask: of address, key, and the question.
        error: of the client.
    """
    monkeypatch.setattr(server, "PING_S", PINGS_S)
    turn = Session._turn

    async def late(self: Session, *args: Any) -> Any:
        while not self.counts["pings"]:  # noqa: ASYNC110 (a count has no event)
            await asyncio.sleep(PINGS_S)
        return await turn(self, *args)

    monkeypatch.setattr(Session, "_turn", late)

    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        with pytest.raises(error, match="maximum context length"):
            await ask(address, key, "y" * 6000)
        assert await ask(address, key, "Go on.") == "yes"
        return 1.0

    outcome, _, life = play(agent, says=texts("yes"))
    assert not outcome.reason, outcome.cause
    assert life.counted["gateway/refused"] == life.server.requests == 1


def check_nothing_is_asked_again(monkeypatch: pytest.MonkeyPatch, asks: Mapping[str, Ask]) -> None:
    """Clients with a shorter limit than an answer takes have their answer without asking again."""
    monkeypatch.setattr(server, "PING_S", PINGS_S)

    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        name = [*asks][sample["session_id"]]
        text = await asks[name](address, key, timeout=LIMIT_S, max_retries=0)
        assert text == "a" * ANSWER_TOK, name
        return float(sample["session_id"] % 2)

    outcome, _, life = play(agent, n=len(asks), says=texts("a" * ANSWER_TOK), token_s=TOKEN_S)
    assert not outcome.reason, outcome.cause
    assert len(life.boxes) == len(asks)
    assert all(box.session.counts["resent"] == 0 and box.session.counts["pings"] > 3 for box in life.boxes)
