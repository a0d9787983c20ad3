"""Weights that a run would miss."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from recipe.async_dapo.startup.preflight import check_all, findings

from ....support.composed_runs import refusal


@pytest.fixture
def model(files, tmp_path):
    """A copy of the valid run's model, to be broken."""
    return shutil.copytree(files / "model", tmp_path / "model")


def test_a_folder_of_a_checkpoint_without_weights_is_refused_with_the_command_that_merges(run, model, tmp_path):
    """Each checkpoint has `actor/huggingface`. A worker said that it holds no weights, minutes after the start."""
    (model / "model.safetensors").unlink()
    named = f"actor_rollout_ref.model.path={model}"
    [note] = [one.note for one in findings(run(named)) if one.name == "model"]
    assert note == f"warning: {named} holds no weights: no more than a rehearsal can start"
    (tmp_path / "model_world_size_2_rank_0.pt").touch()
    message = refusal(run, named)
    assert message.startswith(f"{named}: holds no weights, they are beside it, cut into ranks; merge them")
    assert f"python -m verl.model_merger merge --backend fsdp --local_dir {tmp_path} --target_dir MODEL" in message


def test_the_critics_model_is_looked_at_too(run, model):
    (model / "model.safetensors").unlink()
    critic = ("algorithm.adv_estimator=gae", "critic.strategy=fsdp2", "critic.ppo_micro_batch_size_per_gpu=1")
    found = findings(run(*critic, named := f"critic.model.path={model}"))
    [note] = [one.note for one in found if one.name == "model"]
    assert note == f"warning: {named} holds no weights: no more than a rehearsal can start"


@pytest.mark.parametrize("name", ["mtp.fc.weight", "model.layers.{behind}.eh_proj.weight"])
def test_given_drafts_by_the_models_own_head_when_the_checkpoint_lacks_it_then_they_are_refused(run, model, name):
    drafts = (f"actor_rollout_ref.model.path={model}", "async_dapo.drafts=mtp")
    assert f"drafts=mtp: {model} holds no weights of a head that predicts several tokens" in refusal(run, *drafts)
    layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    weights = load_file(model / "model.safetensors")
    head = weights["model.norm.weight"].clone()
    save_file(weights | {name.format(behind=layers): head}, model / "model.safetensors", metadata={"format": "pt"})
    check_all(run(*drafts))
