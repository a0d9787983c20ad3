"""A model that cannot be used is named before a cluster starts."""

import json
import shutil

import pytest

from recipe.async_dapo.startup.preflight import check_all

from ..support.composed_runs import refusal


@pytest.mark.parametrize("name", ["/no/such/model", "./no/such/model"])
def test_given_a_missing_model_folder_when_checked_then_it_is_named(run, name):
    message = refusal(run, f"actor_rollout_ref.model.path={name}")
    assert message.startswith(f"actor_rollout_ref.model.path={name}: no such folder")


def test_given_a_model_that_is_no_folder_and_not_cached_when_there_is_no_network_then_it_is_named(run, monkeypatch):
    attempts = []

    def unreachable(*_, **__):
        attempts.append(1)
        raise OSError("no network")

    monkeypatch.setattr("socket.create_connection", unreachable)
    message = refusal(run, "actor_rollout_ref.model.path=nobody/no-such-model")
    assert message.startswith("actor_rollout_ref.model.path=nobody/no-such-model: no folder here, not in the cache")
    assert "cannot be reached (no network)" in message and message.endswith("or download the model first")
    assert len(attempts) <= 2, "one of each check that needs the model"


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
