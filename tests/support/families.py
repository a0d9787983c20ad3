"""Tiny models with random weights of families that only tests train."""

from typing import Any

from recipe.async_dapo_lab.gpu_check.families import vision_language

_LINEAR = {
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
}


def qwen3_vl(tokenizer: Any) -> Any:
    vision = {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    text = {"head_dim": 32, "rope": {"mrope_interleaved": True}}
    return vision_language("Qwen3VL", tokenizer, text, vision, [6, 5, 5])


def qwen3_5(tokenizer: Any) -> Any:
    rope = {"mrope_interleaved": True, "partial_rotary_factor": 0.5}
    text = {"head_dim": 32, "num_hidden_layers": 4, "partial_rotary_factor": 0.5, **_LINEAR, "rope": rope}
    return vision_language("Qwen3_5", tokenizer, text, {"num_position_embeddings": 64}, [3, 3, 2])
