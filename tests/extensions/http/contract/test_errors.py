"""What goes wrong in gateway or run under a request: its agent is told in its API's form, and it counts."""

import asyncio
from contextlib import suppress
from typing import Any

import openai
import pytest

from recipe.async_dapo.config.extensions import declared, load
from recipe.async_dapo.engines.client import AsyncDAPOLLMClient
from recipe.async_dapo.extensions.gateway.session import Session
from recipe.async_dapo.recording import current_recorder

from ...gateway.support.played import by_chat, openai_client, play
from ...gateway.support.world import QUESTION, texts

by_chats = pytest.mark.skipif("chat_completions" not in declared(), reason="this copy serves no chat completions")


async def asked(address: str, key: str, **options: Any) -> str:
    async with openai_client(address, key, **options) as client:
        return str((await by_chat(client, QUESTION)).content)


@by_chats
def test_given_a_reply_that_can_never_be_written_then_an_agent_that_asks_for_ever_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> Any:
        raise IndexError("unheard of")

    monkeypatch.setitem(load("chat_completions", "api.body_of").__globals__, "_usage", fails)

    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key, max_retries=0) as client:
            while True:
                with suppress(openai.APIConnectionError):
                    await client.chat.completions.create(model="policy", messages=QUESTION)  # type: ignore[arg-type]

    outcome, _, life = play(agent, says=texts("yes"))
    assert outcome.reason == "agent_refused" and "the gateway has failed: IndexError" in outcome.cause.summary
    assert life.server.requests == 1 and life.counted["gateway/failed_sessions"] == 1


@by_chats
def test_given_an_agent_that_asks_for_ever_for_what_its_api_refuses_then_it_is_ended() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        async with openai_client(address, key) as client:
            while True:
                with suppress(openai.BadRequestError):
                    await by_chat(client, QUESTION, n=2)

    outcome, _, life = play(agent)
    assert outcome.reason == "agent_refused" and "refused requests in a row: n must be 1" in outcome.cause.summary
    assert life.server.requests == 0 and life.counted["gateway/failed_sessions"] == 1


@by_chats
def test_given_engines_that_fail_at_a_turn_then_its_agent_is_told_and_its_session_counts_as_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        with suppress(openai.InternalServerError):
            await asked(address, key, max_retries=0)
        await asyncio.sleep(60)
        return 1.0

    async def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("server a has ended a request with an error")

    monkeypatch.setattr(AsyncDAPOLLMClient, "generate", fails)
    outcome, _, life = play(agent)
    assert outcome.reason == "generation_error" and "server a has ended" in outcome.cause.summary
    assert life.counted["gateway/sessions"] == life.counted["gateway/failed_sessions"] == 1
    assert life.boxes[0].session.last_refusal == "the run has failed"


@by_chats
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


@by_chats
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
        await asked(address, key)
        return 1.0

    outcome, _, _ = play(agent)
    assert not outcome.reason and held == [None]
