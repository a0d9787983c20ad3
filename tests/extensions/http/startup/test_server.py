"""What the agents' server needs is checked before a cluster starts."""

import resource
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.gateway import start_up
from recipe.async_dapo.extensions.gateway.options import AgentOptions
from recipe.async_dapo.extensions.http import apis, server
from recipe.async_dapo.extensions.http.server import AgentServer

WORKERS = "actor_rollout_ref.rollout.agent.num_workers"


def test_given_a_copy_with_no_api_then_an_entry_is_refused_by_name(monkeypatch) -> None:
    monkeypatch.setattr(server, "declared", dict)
    monkeypatch.setattr(start_up, "program_of", lambda options: SimpleNamespace(check=list))
    with pytest.raises(
        ConfigError, match="path, agent=a:b: extensions/chat_completions is not in this copy; copy that"
    ):
        start_up.check_agent({"agent": "a:b"}, OmegaConf.create())


def test_given_too_few_open_files_for_a_batch_then_limit_number_and_remedy_are_named(run, monkeypatch) -> None:
    monkeypatch.setattr(server, "declared", lambda: {"an_api": SimpleNamespace(api="api.API")})
    options = AgentOptions.of({"agent": "a:b"})
    AgentServer.check(options, run())
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    many = run("data.train_batch_size=64", "actor_rollout_ref.rollout.n=16", f"{WORKERS}=8")
    with pytest.raises(ConfigError) as refused:
        AgentServer.check(options, many)
    message = str(refused.value)
    assert "ulimit -Hn=1024: 128 sessions that a worker may have open at once take 1536 open files; raise" in message
    assert f"more {WORKERS}" in message


def test_given_a_copy_without_an_api_then_a_warning_names_its_path_and_its_folder(run, monkeypatch) -> None:
    there = {name: SimpleNamespace(api="api.API") for name in apis.OF_EXTENSIONS}
    for module in (server, apis):
        monkeypatch.setattr(module, "declared", lambda: there)
    options = AgentOptions.of({"agent": "a:b"})
    assert AgentServer.check(options, run()) == []
    del there["chat_completions"]
    [told] = AgentServer.check(options, run())
    assert told == "requests to /v1/chat/completions are refused: extensions/chat_completions is not in this copy"
