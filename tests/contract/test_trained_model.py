"""What a checkpoint notes of its model stays the same when transformers saves that model again."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from transformers import AutoConfig

from recipe.async_dapo.record.trained_model import TrainedModel, architecture_at

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-06,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
}
# As transformers 4 wrote them. The values of the last two were chosen for long texts.
SAVED_BEFORE: dict[str, dict[str, Any]] = {
    "qwen3": {"hidden_act": "silu", "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None},
    "gemma3_text": {
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
    },
    "qwen2": {
        "hidden_act": "silu",
        "max_window_layers": 2,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "use_sliding_window": False,
    },
    "llama": {
        "hidden_act": "silu",
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 2048,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
    },
}


@pytest.mark.parametrize("kind", SAVED_BEFORE)
def test_given_a_model_that_was_saved_again_then_it_is_the_same(tmp_path: Path, kind: str) -> None:
    content = SIZES | SAVED_BEFORE[kind] | {"model_type": kind}
    (tmp_path / "config.json").write_text(json.dumps(content))
    AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    before, after = (
        TrainedModel(path="", architecture=architecture_at(str(folder))) for folder in (tmp_path, tmp_path / "again")
    )
    assert before.differs_in(after) == []
    assert {"rope_theta", "rope_type", "rms_norm_eps"} <= before.architecture.keys() & after.architecture.keys()


def test_given_rotations_by_type_of_layer_then_each_type_is_compared(tmp_path: Path) -> None:
    def noted(theta: float) -> TrainedModel:
        of_type = {
            name: {"rope_type": "default", "rope_theta": theta} for name in ("full_attention", "sliding_attention")
        }
        content = {"text_config": {"rope_parameters": of_type | {"full_attention": {"rope_theta": 1e6}}}}
        (tmp_path / "config.json").write_text(json.dumps(content))
        return TrainedModel(path="", architecture=architecture_at(str(tmp_path)))

    assert noted(1e4).differs_in(noted(1e5)) == ["text_config.sliding_attention.rope_theta"]


def test_given_a_model_that_sees_when_it_was_saved_again_then_it_is_the_same(tmp_path: Path) -> None:
    """Since transformers 5 the type of the part that sees has another name."""
    parts = {"text_config": {"model_type": "qwen3_vl_text"}, "vision_config": {"model_type": "qwen3_vl", "depth": 2}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl"} | parts))
    AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    before, after = (
        TrainedModel(path="", architecture=architecture_at(str(folder))) for folder in (tmp_path, tmp_path / "again")
    )
    assert "vision_config.model_type" in before.architecture.keys() & after.architecture.keys()
    assert before.differs_in(after) == []
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {"model_type": "clip_vision_model"}}))
    other = TrainedModel(path="", architecture=architecture_at(str(tmp_path)))
    assert after.differs_in(other) == ["vision_config.model_type"]


def test_given_a_value_without_an_end_then_a_note_of_the_model_is_the_same(tmp_path: Path) -> None:
    """Mamba's layers have one, and a checkpoint's note, which is JSON, cannot hold it."""
    (tmp_path / "config.json").write_text('{"time_step_limit": [0.0, Infinity]}')
    now = TrainedModel(path="", architecture=architecture_at(str(tmp_path)))
    noted = msgspec.json.decode(msgspec.json.encode(now), type=TrainedModel)
    assert "time_step_limit" in now.architecture and noted.differs_in(now) == []
