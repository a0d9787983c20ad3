"""What goes wrong in gateway or run under a request: its agent is told in its API's form, and it counts."""

import asyncio
from contextlib import suppress
from types import ModuleType
from typing import Any

import anthropic
import openai
import pytest

from recipe.async_dapo.core.outcome import KnownPlaces
from recipe.async_dapo.engines.client import AsyncDAPOLLMClient
from recipe.async_dapo.extensions.gateway import anthropic_messages, chat, responses, server
from recipe.async_dapo.extensions.gateway.session import Session
from recipe.async_dapo.recording import current_recorder

from ..support.played import openai_client, play
from ..support.world import QUESTION, texts

ERRORS = (openai.APIStatusError, anthropic.APIStatusError)
GONE = (openai.APIConnectionError, anthropic.APIConnectionError)


async def asked(api: ModuleType, address: str, key: str, **options: Any) -> str:
    """A model's answer, by the SDK of this API."""
    if api is anthropic_messages:
        async with anthropic.AsyncAnthropic(base_url=address, api_key=key, **options) as claude:
            reply = await claude.messages.create(model="policy", messages=QUESTION, max_tokens=99)  # type: ignore[arg-type]
            return reply.content[0].text  # type: ignore[union-attr]
    async with openai_client(address, key, **options) as client:
        if api is responses:
            return (await client.responses.create(model="policy", input=QUESTION)).output_text  # type: ignore[arg-type]
        said = await client.chat.completions.create(model="policy", messages=QUESTION)  # type: ignore[arg-type]
        return said.choices[0].message.content or ""


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Its first call fails in a way that nobody has thought of."""
    whole, calls = getattr(owner, name), iter([IndexError("unheard of")])

    def fails_first(*args: Any, **kwargs: Any) -> Any:
        for error in calls:
            raise error
        return whole(*args, **kwargs)

    monkeypatch.setattr(owner, name, fails_first)


@pytest.mark.parametrize("api", [chat, responses, anthropic_messages], ids=lambda api: api.__name__.split(".")[-1])
@pytest.mark.parametrize("where", ["before its turn", "behind its turn"])
def test_given_an_error_of_the_gateway_itself_then_its_agent_is_told_may_ask_again_and_it_counts(
    api: ModuleType, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "_logged", KnownPlaces())
    once(monkeypatch, *((Session, "_exchange_of") if where == "before its turn" else (api, "body_of")))

    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        if where == "before its turn":
            with pytest.raises(ERRORS) as told:
                await asked(api, address, key, max_retries=0)
            error: Any = told.value
            assert error.status_code == 500 and "the gateway has failed: IndexError" in error.message
            kind = error.body["error"]["type"] if api is anthropic_messages else error.type
            assert kind in ("server_error", "api_error")
        else:  # a reply has begun: too late for a status
            with pytest.raises(GONE):
                await asked(api, address, key, max_retries=0)
        assert await asked(api, address, key) == "yes"
        return 1.0

    outcome, group, life = play(agent, says=texts("yes"))
    assert not outcome.reason, outcome.cause
    assert life.counted["gateway/errors"] == 1 and life.counted["gateway/failed_sessions"] == 0
    assert life.server.requests == len(group.trajectories[0].outputs) == 1, "the turn is sampled once"
    assert "the gateway has failed at a request to /v1/" in caplog.text and "unheard of" in caplog.text


def test_given_a_reply_that_can_never_be_written_then_an_agent_that_asks_for_ever_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> Any:
        raise IndexError("unheard of")

    monkeypatch.setattr(chat, "body_of", fails)

    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key, max_retries=0) as client:
            while True:
                with suppress(openai.APIConnectionError):
                    await client.chat.completions.create(model="policy", messages=QUESTION)  # type: ignore[arg-type]

    outcome, _, life = play(agent, says=texts("yes"))
    assert outcome.reason == "agent_refused" and "the gateway has failed: IndexError" in outcome.cause.summary
    assert life.server.requests == 1 and life.counted["gateway/failed_sessions"] == 1


def test_given_engines_that_fail_at_a_turn_then_its_agent_is_told_and_its_session_counts_as_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        with suppress(openai.InternalServerError):
            await asked(chat, address, key, max_retries=0)
        await asyncio.sleep(60)
        return 1.0

    async def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("server a has ended a request with an error")

    monkeypatch.setattr(AsyncDAPOLLMClient, "generate", fails)
    outcome, _, life = play(agent)
    assert outcome.reason == "generation_error" and "server a has ended" in outcome.cause.summary
    assert life.counted["gateway/sessions"] == life.counted["gateway/failed_sessions"] == 1
    assert life.boxes[0].session.last_refusal == "the run has failed"


def test_given_a_record_that_is_full_then_its_agent_is_told_so_at_once_and_its_session_counts_as_failed() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        long = [{"role": "user", "content": "a" * 2**20}]
        async with openai_client(address, key) as client:
            with suppress(openai.APIStatusError):
                await client.chat.completions.create(model="policy", messages=long)  # type: ignore[arg-type]
        await asyncio.sleep(60)
        return 1.0

    outcome, _, life = play(agent, ignored=["time"])
    assert outcome.reason == "journal_full" and "MiB of calls" in outcome.cause.summary
    assert life.counted["gateway/sessions"] == life.counted["gateway/failed_sessions"] == 1
    assert "the session is over: journal_full" in life.boxes[0].session.last_refusal
    assert life.counted["gateway/refused"] == 1


def test_given_a_server_that_a_session_has_started_then_it_holds_no_record_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[Any] = []
    ask = Session.ask

    async def noted(self: Session, *args: Any, **kwargs: Any) -> Any:
        held.append(current_recorder.get())
        return await ask(self, *args, **kwargs)

    monkeypatch.setattr(Session, "ask", noted)

    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        await asked(chat, address, key)
        return 1.0

    outcome, _, _ = play(agent)
    assert not outcome.reason and held == [None]
