"""A model that cannot be used is named before a cluster starts."""

import json
import shutil
import threading

import pytest

from recipe.async_dapo.startup import model_check
from recipe.async_dapo.startup.model_check import hub_problem
from recipe.async_dapo.startup.preflight import check_all, findings

from ..support.composed_runs import refusal


@pytest.mark.parametrize("name", ["/no/such/model", "./no/such/model"])
def test_given_a_missing_model_folder_when_checked_then_it_is_named(run, name):
    message = refusal(run, f"actor_rollout_ref.model.path={name}")
    assert message.startswith(f"actor_rollout_ref.model.path={name}: no such folder")


@pytest.fixture
def hub_not_asked_yet():
    hub_problem.cache_clear()
    yield
    hub_problem.cache_clear()


def test_given_a_model_that_is_no_folder_and_not_cached_when_there_is_no_network_then_the_hub_is_asked_once(
    run, monkeypatch, hub_not_asked_yet
):
    attempts = []

    def unreachable(*_, **__):
        attempts.append(1)
        raise OSError("no network")

    monkeypatch.setattr("socket.create_connection", unreachable)
    path = "actor_rollout_ref.model.path=nobody/no-such-model"
    errors = [str(one.error) for one in findings(run(path)) if one.error is not None]
    assert [error.partition(",")[0] for error in errors] == [f"{path}: no folder here"] * 2, "of data, and of the model"
    assert all("cannot be reached (no network); correct the path, or download the model first" in one for one in errors)
    assert len(attempts) == 1


def test_given_a_name_server_that_does_not_answer_when_checked_then_it_is_not_waited_for(
    run, monkeypatch, hub_not_asked_yet
):
    answered = threading.Event()
    monkeypatch.setattr(model_check, "_HUB_LIMIT_S", 0.1)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: answered.wait(60) and [])
    message = refusal(run, "actor_rollout_ref.model.path=nobody/no-such-model")
    assert "cannot be reached (no answer in 0.1 s); correct the path" in message and not answered.is_set()
    answered.set()


def test_given_a_tokenizer_without_chat_template_when_checked_then_the_remedy_is_named(run, files, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for path in (files / "model").iterdir():
        if path.name != "chat_template.jinja":
            (folder / path.name).write_bytes(path.read_bytes())
    message = refusal(run, f"actor_rollout_ref.model.path={folder}")
    assert "its chat template fails" in message and "custom_chat_template" in message


@pytest.fixture
def model(files, tmp_path):
    """A copy of the valid run's model, to be broken."""
    return shutil.copytree(files / "model", tmp_path / "model")


def test_given_a_folder_with_a_tokenizer_only_when_checked_then_the_missing_model_is_named(run, files, model):
    (model / "config.json").unlink()
    message = refusal(
        run, f"actor_rollout_ref.model.tokenizer_path={files}/model", f"actor_rollout_ref.model.path={model}"
    )
    assert message.startswith(f"actor_rollout_ref.model.path={model}: has no config.json")


def test_given_a_context_shorter_than_prompt_and_response_when_checked_then_both_lengths_are_named(run, files, model):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 63}))
    path = f"actor_rollout_ref.model.path={model}"
    assert "the model has 63 positions" in refusal(run, path) and "= 64; lower these" in refusal(run, path)
    check_all(run(path, "data.max_response_length=31"))
    check_all(run(path, "++actor_rollout_ref.model.override_config.max_position_embeddings=64"))
    check_all(run(path, "++actor_rollout_ref.model.override_config.model_config.max_position_embeddings=64"))
    (model / "config.json").write_text(json.dumps(config | {"model_type": "of_an_external_lib"}))
    check_all(run(path, f"actor_rollout_ref.model.tokenizer_path={files}/model"))  # verl decides
