"""A model that cannot be used is named before a cluster starts."""

import json
import shutil
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from recipe.async_dapo.extensions.checks.model import WRONG_LOG_PROBS, ModelSetup
from recipe.async_dapo.startup.preflight import check_all

from ....support.composed_runs import refusal


@pytest.fixture
def model(files, tmp_path):
    """A copy of the valid run's model, to be broken."""
    return shutil.copytree(files / "model", tmp_path / "model")


def test_given_a_tokenizer_without_chat_template_when_checked_then_the_remedy_is_named(run, model):
    (model / "chat_template.jinja").unlink()
    message = refusal(run, f"actor_rollout_ref.model.path={model}")
    assert "its chat template fails" in message and "custom_chat_template" in message


@pytest.mark.parametrize("template", ["{}/chat_template.jinja", "all alike"])
def test_a_template_that_leaves_out_what_is_asked_is_refused(run, model, template):
    """A name of a file is the text of a template: every prompt was that name."""
    message = refusal(run, f"actor_rollout_ref.model.custom_chat_template='{template.format(model)}'")
    assert message.startswith("actor_rollout_ref.model.custom_chat_template=") and "the same tokens of every" in message
    (model / "chat_template.jinja").write_text("all alike")
    assert "its chat template makes the same tokens of 12 and 345" in refusal(
        run, f"actor_rollout_ref.model.path={model}"
    )


def test_given_a_folder_with_a_tokenizer_only_when_checked_then_the_missing_model_is_named(run, files, model):
    (model / "config.json").unlink()
    message = refusal(
        run, f"actor_rollout_ref.model.tokenizer_path={files}/model", f"actor_rollout_ref.model.path={model}"
    )
    assert message.startswith(f"actor_rollout_ref.model.path={model}: verl cannot load it: ValueError: ")


def test_given_a_context_shorter_than_prompt_and_response_when_checked_then_both_lengths_are_named(run, model):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 63}))
    path = f"actor_rollout_ref.model.path={model}"
    for within in ((), ("actor_rollout_ref.rollout.max_model_len=64",)):
        message = refusal(run, path, *within)
        assert message.startswith("data.max_response_length=32: ") and "= 64, and the model has 63 positions" in message
    check_all(run(path, "data.max_response_length=31"))
    for most in (62, 64):
        within = (path, "data.max_response_length=31", f"actor_rollout_ref.rollout.max_model_len={most}")
        assert f"max_model_len={most}: must be null, or in 63..63" in refusal(run, *within)
    check_all(run(path, "++actor_rollout_ref.model.override_config.max_position_embeddings=64"))
    check_all(run(path, "++actor_rollout_ref.model.override_config.model_config.max_position_embeddings=64"))


EXTERNAL_LIB = """
from transformers import AutoConfig, PretrainedConfig
class Config(PretrainedConfig):
    model_type = "of_an_external_lib"
AutoConfig.register(Config.model_type, Config, exist_ok=True)
"""


def test_given_a_model_of_an_external_lib_that_ray_ships_when_checked_then_it_is_loaded_as_verl_will(
    run, files, model, monkeypatch
):
    monkeypatch.setattr(CONFIG_MAPPING, "_extra_content", {})
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "of_an_external_lib"}))
    (model / "the_lib").mkdir()
    (model / "the_lib" / "__init__.py").write_text(EXTERNAL_LIB)
    named = (f"actor_rollout_ref.model.path={model}", f"actor_rollout_ref.model.tokenizer_path={files}/model")
    assert "has model type `of_an_external_lib` but Transformers does not" in refusal(run, *named)
    lib = "actor_rollout_ref.model.external_lib=the_lib"
    assert "verl cannot load it: ModuleNotFoundError: No module named 'the_lib'" in refusal(run, *named, lib)
    check_all(run(*named, lib, f"+ray_kwargs.ray_init.runtime_env.py_modules=[{model}/the_lib]"))


PACKED = ModelSetup(
    model_type="qwen3",
    attention="sdpa",
    layers=frozenset({"full_attention", "sliding_attention"}),
    packs=True,
    split_over=1,
    has_fla=False,
)
LINEAR = {"layers": frozenset({"full_attention", "linear_attention"})}
FLASH = {"attention": "flash_attention_2"}


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, []),
        ({"split_over": 2} | FLASH, []),
        ({"split_over": 2}, ["ulysses_sequence_parallel_size"]),
        ({"split_over": 2, "packs": False} | FLASH, ["ulysses_sequence_parallel_size"]),
        ({"model_type": "qwen3_next"} | LINEAR, ["use_remove_padding"]),
        ({"model_type": "qwen3_next"} | LINEAR | FLASH, ["use_remove_padding"]),  # the linear layers do not know
        ({"model_type": "qwen3_next", "packs": False} | LINEAR, []),
        ({"model_type": "lfm2", "layers": frozenset({"conv", "full_attention"})}, ["use_remove_padding"]),
        ({"model_type": "qwen3_5_moe"} | LINEAR, ["use_remove_padding"]),
        ({"model_type": "qwen3_5", "packs": False} | LINEAR, []),
        ({"model_type": "qwen3_5", "has_fla": True} | LINEAR, []),
        ({"model_type": "gpt_oss", "attention": "eager"}, ["use_remove_padding"]),
        ({"model_type": "gpt_oss", "attention": "kernels-community/vllm-flash-attn3"}, []),
        ({"model_type": "gpt_oss", "packs": False}, ["attn_implementation"]),
        ({"model_type": "gpt_oss", "packs": False, "attention": "eager"}, []),
    ],
)
def test_options_with_which_verl_is_known_to_compute_other_log_probs_are_refused(changed, wrong):
    use = replace(PACKED, **changed)
    assert [rule.key.rpartition(".")[2] for rule in WRONG_LOG_PROBS if rule.is_wrong(use)] == wrong


def test_a_model_s_kind_and_layers_are_read_as_verl_does(run, model):
    config = json.loads((model / "config.json").read_text())
    lfm2 = {"model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "layer_types": ["conv", "full_attention"]}
    (model / "config.json").write_text(json.dumps(config | lfm2))
    path = f"actor_rollout_ref.model.path={model}"
    message = "actor_rollout_ref.model.use_remove_padding=True: the model's linear, convolutional or recurrent layers"
    assert refusal(run, path).startswith(message)
    padded = (path, "actor_rollout_ref.model.use_remove_padding=False")
    check_all(run(*padded))


def test_an_output_layer_that_engines_would_leave_out_is_refused(run, model):
    config, weights = json.loads((model / "config.json").read_text()), load_file(model / "model.safetensors")
    path, embeddings = f"actor_rollout_ref.model.path={model}", weights["model.embed_tokens.weight"]
    check_all(run(path))
    (model / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    save_file(weights | {"lm_head.weight": embeddings + 1}, model / "model.safetensors", metadata={"format": "pt"})
    assert refusal(run, path).startswith(f"{path}: its config.json has tie_word_embeddings=true, and its checkpoint an")
    save_file(weights | {"lm_head.weight": embeddings.clone()}, model / "model.safetensors", metadata={"format": "pt"})
    check_all(run(path))
