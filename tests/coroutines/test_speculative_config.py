"""A source of drafts: how the engine sleeps, and how long its contexts may be."""

from types import SimpleNamespace
from typing import Any

import pytest

from recipe.async_dapo.config.values import SPECULATIVE_CONFIGS, Drafts, SpeculativeConfig
from recipe.async_dapo.engines.server import AsyncDAPOServer

from ..support.scripted_engine import ScriptedEngine, start_server

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
HEAD = {"model": "a/head", "num_speculative_tokens": 3, "draft_load_config": {"load_format": "auto"}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> AsyncDAPOServer:
    server = start_server(monkeypatch, ScriptedEngine(9))
    server.config.enable_chunked_prefill = True
    server.model_config.hf_config = SimpleNamespace(max_position_embeddings=4096, get_text_config=SimpleNamespace)
    return server


def arguments(server: AsyncDAPOServer, **engine_kwargs: Any) -> dict[str, Any]:
    server._preprocess_engine_kwargs(engine_kwargs)
    return engine_kwargs


@pytest.mark.parametrize(
    ("own", "level"),
    [
        ({}, 2),
        ({"speculative_config": NGRAM}, 2),
        ({"speculative_config": SPECULATIVE_CONFIGS[Drafts.SUFFIX]}, 2),
        ({"speculative-config": HEAD}, 1),
        ({"speculative_config": SPECULATIVE_CONFIGS[Drafts.MTP]}, 1),
    ],
    ids=["none", "ngram", "suffix", "a model", "its own head"],
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


def test_what_says_nothing_of_drafts_has_none():
    assert SpeculativeConfig.of({"kv_cache_dtype": "fp8", "speculative_config": None}) is None
