"""Accelerators, from the vendors' data sheets, and models: what decides their speed, by name or from a config.json."""

from dataclasses import dataclass
from typing import Any

from ...async_dapo.config.values import ConfigError, did_you_mean
from .model_size import ModelShape, find_config, shape_of
from .trainer_memory import Gpu

# Fields of the models' published config.json that decide their size.
_FIELDS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "vocab_size", "tie_word_embeddings", "num_experts", "num_experts_per_tok"),
)
MODEL_PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_FIELDS, values, strict=True))
    for name, *values in (
        ("qwen3-4b", 2560, 36, 32, 8, 128, 9728, 151936, True, 0, 0),
        ("qwen3-8b", 4096, 36, 32, 8, 128, 12288, 151936, False, 0, 0),
        ("qwen3-14b", 5120, 40, 40, 8, 128, 17408, 151936, False, 0, 0),
        ("qwen3-32b", 5120, 64, 64, 8, 128, 25600, 151936, False, 0, 0),
        ("r1-distill-qwen-1.5b", 1536, 28, 12, 2, 128, 8960, 151936, False, 0, 0),
        ("r1-distill-qwen-7b", 3584, 28, 28, 4, 128, 18944, 152064, False, 0, 0),
        ("mimo-7b", 4096, 36, 32, 8, 128, 11008, 151680, False, 0, 0),
        ("qwen3-0.6b", 1024, 28, 16, 8, 128, 3072, 151936, True, 0, 0),
        ("qwen3-1.7b", 2048, 28, 16, 8, 128, 6144, 151936, True, 0, 0),
        ("qwen2.5-7b", 3584, 28, 28, 4, 128, 18944, 152064, False, 0, 0),
        ("qwen2.5-32b", 5120, 64, 40, 8, 128, 27648, 152064, False, 0, 0),
        ("llama-3.1-8b", 4096, 32, 32, 8, 128, 14336, 128256, False, 0, 0),
        ("llama-3.1-70b", 8192, 80, 64, 8, 128, 28672, 128256, False, 0, 0),
        ("mixtral-8x7b", 4096, 32, 32, 8, 128, 14336, 32000, False, 8, 2),
        ("qwen3-30b-a3b", 2048, 48, 32, 4, 128, 768, 151936, False, 128, 8),
        ("qwen3-235b-a22b", 4096, 94, 64, 4, 128, 1536, 151936, False, 128, 8),
        ("qwen3.5-35b-a3b", 2048, 40, 16, 2, 256, 512, 248320, False, 256, 8),
    )
}
MODEL_PRESETS["qwen3.5-35b-a3b"] |= {
    "shared_expert_intermediate_size": 512,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "vision_config": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator(Gpu):
    """A GPU and its speed. Peak numbers; what a server reaches of them is `ServerConstants`."""

    bandwidth_tb_s: float
    bf16_tflop_s: float  # dense


ACCELERATORS: dict[str, Accelerator] = {
    preset.name: preset
    for preset in (
        Accelerator(name="a800", memory_gb=80, bandwidth_tb_s=2.0, bf16_tflop_s=312),
        Accelerator(name="a100", memory_gb=80, bandwidth_tb_s=2.04, bf16_tflop_s=312),
        Accelerator(name="h100", memory_gb=80, bandwidth_tb_s=3.35, bf16_tflop_s=989),
        Accelerator(name="h800", memory_gb=80, bandwidth_tb_s=3.35, bf16_tflop_s=989),
        Accelerator(name="h200", memory_gb=141, bandwidth_tb_s=4.8, bf16_tflop_s=989),
        Accelerator(name="h20", memory_gb=96, bandwidth_tb_s=4.0, bf16_tflop_s=148),
        Accelerator(name="b200", memory_gb=180, bandwidth_tb_s=7.7, bf16_tflop_s=2250),
        Accelerator(name="mi300x", memory_gb=192, bandwidth_tb_s=5.3, bf16_tflop_s=1307),
    )
}

DEFAULT_ACCELERATOR = "h200"  # where none is named


def find_accelerator(name: str) -> Accelerator:
    """
    Raises:
        ConfigError: when there is no such preset.
    """
    if name.lower() not in ACCELERATORS:
        raise ConfigError(
            "accelerator",
            name,
            f"unknown{did_you_mean(name, ACCELERATORS)}; choose one of {', '.join(ACCELERATORS)}, or set memory_gb, "
            "bandwidth_tb_s, bf16_tflop_s",
        )
    return ACCELERATORS[name.lower()]


def load_model(source: str) -> ModelShape:
    """A preset's name, a Hugging Face config.json, a folder that holds one, or a model in Hugging Face's cache.

    Raises:
        ConfigError: when there is no such model, or its config.json says too little.
    """
    if source.lower() in MODEL_PRESETS:
        return shape_of(MODEL_PRESETS[source.lower()], name=source.lower())
    try:
        config, name = find_config(source)
    except FileNotFoundError:
        raise ConfigError(
            "model",
            source,
            f"no such file{did_you_mean(source, MODEL_PRESETS)}; give a config.json, its folder, a model in "
            f"Hugging Face's cache, or one of {', '.join(MODEL_PRESETS)}",
        ) from None
    return shape_of(config, name=name)
