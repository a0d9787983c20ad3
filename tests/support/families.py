"""Tiny models with random weights of families that only tests train."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from recipe.async_dapo_lab.gpu_check.families import TEXT, ids_of, vision_language

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


def glm4_moe(tokenizer: Any) -> Any:
    """Its head that drafts is added to its folder by `add_head`."""
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
    head = {"num_nextn_predict_layers": 1}
    model = Glm4MoeForCausalLM(Glm4MoeConfig(**TEXT, **ids_of(tokenizer), **experts, **head, head_dim=32))
    with torch.no_grad():  # the last token decides most, so that a head of one layer is often right
        for name, parameter in model.named_parameters():
            parameter *= 0.01 if "o_proj" in name or "down_proj" in name else 2.0 if "lm_head" in name else 1.0
    return model


def add_head(folder: Path) -> None:
    """A head that predicts the token after the next one, which transformers saves none of: the model's last layer, run
    on the next token's embedding.
    """
    file, size, layers = folder / "model.safetensors", TEXT["hidden_size"], TEXT["num_hidden_layers"]
    weights, last, own = load_file(file), f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    head = {name.replace(last, own): tensor.clone() for name, tensor in weights.items() if name.startswith(last)}
    head |= {f"{own}{name}.weight": torch.ones(size) for name in ("enorm", "hnorm", "shared_head.norm")}
    head[own + "eh_proj.weight"] = torch.cat([torch.eye(size), torch.zeros(size, size)], dim=1)
    head[own + "embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
    head[own + "shared_head.head.weight"] = weights["lm_head.weight"].clone()
    save_file(weights | head, file, metadata={"format": "pt"})
