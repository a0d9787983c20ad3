"""A source of drafts that users give vLLM themselves: how the engine sleeps, and how long its contexts may be."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ObjectLostError

from recipe.async_dapo.config import CUSTOM_OPTIONS
from recipe.async_dapo.core.concurrency import EngineLoad
from recipe.async_dapo.engines.server import AsyncDAPOServer
from recipe.async_dapo.option_values import OwnDrafts

from ..support.scripted_engine import ScriptedEngine, start_server

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
HEAD = {"model": "a/head", "num_speculative_tokens": 3, "draft_load_config": {"load_format": "auto"}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> AsyncDAPOServer:
    server = start_server(monkeypatch, ScriptedEngine(9))
    server.config.enable_chunked_prefill = True
    server.model_config.hf_config = SimpleNamespace(max_position_embeddings=4096)
    return server


def arguments(server: AsyncDAPOServer, **engine_kwargs: Any) -> dict[str, Any]:
    server._preprocess_engine_kwargs(engine_kwargs)
    return engine_kwargs


@pytest.mark.parametrize(
    ("own", "level"),
    [({}, 2), ({"speculative_config": NGRAM}, 2), ({"speculative-config": HEAD}, 1)],
    ids=["none", "ngram", "a model"],
)
def test_an_engine_keeps_its_weights_when_it_sleeps_where_a_model_drafts_that_no_update_brings_back(server, own, level):
    server.config.engine_kwargs = {"vllm": own}
    assert server._resolve_sleep_level() == level


@pytest.mark.parametrize(
    ("own", "longest_tok"),
    [
        ({}, None),
        ({"speculative_config": NGRAM}, 1004),
        ({"speculative-config": '{"method": "ngram", "num_speculative_tokens": 4}'}, 1004),
        ({"speculative_config": HEAD}, 1003),
    ],
)
def test_contexts_of_an_engine_with_drafts_may_be_longer_by_a_draft(server, own, longest_tok):
    assert arguments(server, **own).get("max_model_len") == longest_tok


def test_an_engine_that_computes_prompts_at_once_takes_so_many_tokens(server):
    server.config.enable_chunked_prefill, server.config.max_num_batched_tokens = False, 1000
    assert arguments(server, speculative_config=NGRAM)["max_num_batched_tokens"] == 1004


async def test_answers_of_earlier_visits_that_are_lost_or_find_no_room_are_counted(server, monkeypatch, caplog):
    told = []

    async def has_no_room(method: str, args: tuple[Any, ...]) -> list[int]:
        told.append(args)
        return [len(args[1]) - 1]

    async def lost() -> list[bytes]:
        raise ObjectLostError("00", None, "on a node that died")

    monkeypatch.setattr(server.engine._engine, "collective_rpc", has_no_room, raising=False)
    await server.learn_answers("group", [kept([b"a", b"b"]), lost(), kept([b"c"])])
    assert told == [("group", [b"a", b"b"]), ("group", [b"c"])]
    assert server._untaught == 2
    assert "2 answers of earlier visits are no drafts here so far" in caplog.text and "died" in caplog.text


async def kept(answers: list[bytes]) -> list[bytes]:
    return answers


async def test_a_stop_says_what_drafts_took_of_the_steps_since_the_engine_was_opened(server, monkeypatch):
    async def step_s(method: str) -> list[float]:
        assert method == "draft_step_s"
        return [0.002, 0.001]  # of two ranks: the first one's drafts are taken

    server._meter = SimpleNamespace(
        load=lambda: EngineLoad(kv_room_tok=1, max_num_seqs=1, steps=50, busy_s=2.0), samples=lambda: None
    )
    assert (await server.stop_generation()).draft_s == 0
    monkeypatch.setattr(server.engine._engine, "collective_rpc", step_s, raising=False)
    server.config.custom[CUSTOM_OPTIONS]["drafts"] = "siblings"
    assert (await server.stop_generation()).draft_s == pytest.approx(0.1)


def test_what_says_nothing_of_drafts_has_none():
    assert OwnDrafts.of({"kv_cache_dtype": "fp8", "speculative_config": None}) is None
