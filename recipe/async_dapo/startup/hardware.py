"""Accelerators, from the vendors' data sheets, and models: what decides their speed, by name or from a config.json."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..option_values import ConfigError, did_you_mean

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
    )
}

BYTES_PER_VALUE = 2  # bf16 weights and KV cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One GPU. Peak numbers; what a server reaches of them is `ServerConstants`."""

    name: str
    memory_gb: float  # 1e9 bytes
    bandwidth_tb_s: float
    bf16_tflop_s: float  # dense


PRESETS: dict[str, Accelerator] = {
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
    if name.lower() not in PRESETS:
        raise ConfigError(
            "accelerator",
            name,
            f"unknown{did_you_mean(name, PRESETS)}; choose one of {', '.join(PRESETS)}, or set memory_gb, "
            "bandwidth_tb_s, bf16_tflop_s",
        )
    return PRESETS[name.lower()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What of a decoder-only transformer decides its speed: weights, KV cache and arithmetic per token."""

    name: str
    weight_bytes: float
    kv_bytes_per_token: float
    flops_per_token: float  # matrix products of one token's forward pass, without attention
    attention_flops_per_token2: float  # causal attention over a context of c tokens costs this times c^2
    attention_heads: int = 1
    kv_heads: int = 1
    parameters: float = 0.0
    layers: int = 0
    hidden: int = 0
    vocabulary: int = 0

    @property
    def tensor_parallel_sizes(self) -> list[int]:
        """GPUs per server that vLLM accepts: they divide the heads, and divide the KV heads or are divided by them."""
        return [
            n
            for n in range(1, self.attention_heads + 1)
            if self.attention_heads % n == 0 and (self.kv_heads % n == 0 or n % self.kv_heads == 0)
        ]

    def forward_flops(self, tokens: float, tokens_squared: float) -> float:
        """Arithmetic of a forward pass over sequences [FLOP].

        Args:
            tokens: sum of their lengths.
            tokens_squared: sum of their squared lengths.
        """
        return self.flops_per_token * tokens + self.attention_flops_per_token2 * tokens_squared


def load_model(source: str) -> ModelShape:
    """A preset's name, a Hugging Face config.json, a folder that holds one, or a model in Hugging Face's cache.

    Raises:
        ConfigError: when there is no such model, or its config.json says too little.
    """
    if source.lower() in MODEL_PRESETS:
        return shape_of(MODEL_PRESETS[source.lower()], name=source.lower())
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    cached = None if path.exists() else _cached_config(source)
    try:
        config = json.loads((cached or path).read_text())
    except FileNotFoundError:
        raise ConfigError(
            "model",
            source,
            f"no such file{did_you_mean(source, MODEL_PRESETS)}; give a config.json, its folder, a model in "
            f"Hugging Face's cache, or one of {', '.join(MODEL_PRESETS)}",
        ) from None
    except (ValueError, OSError) as error:
        raise ConfigError(
            "model", source, f"cannot be read as JSON ({error}); give a Hugging Face config.json"
        ) from error
    return shape_of(config, name=source if cached else path.parent.name or path.stem)


def _cached_config(source: str) -> Path | None:
    with suppress(ImportError, ValueError):  # the planner does without the hub; a path is no name of a model
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(source, "config.json")
        return Path(found) if isinstance(found, str) else None
    return None


def shape_of(config: Mapping[str, Any], *, name: str) -> ModelShape:
    """The shape of a dense or mixture-of-experts model with grouped-query attention.

    Raises:
        ConfigError: when a field is missing, or the attention is of another kind.
    """
    text = config.get("text_config", config)
    if "kv_lora_rank" in text:
        raise ConfigError("model", name, "latent attention is not modelled; set weight_gb and kv_bytes_per_token")
    hidden, layers, heads = (_size(text, name, k) for k in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    vocabulary = _size(text, name, "vocab_size")
    kv_heads = int(text.get("num_key_value_heads") or heads)
    head_dim = int(text.get("head_dim") or hidden // heads)
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    all_experts, active_experts = _feed_forward(text, name, hidden)
    embedding = vocabulary * hidden
    tied = bool(text.get("tie_word_embeddings"))  # absent: untied, as Llama's, Qwen's and Mistral's classes have it
    parameters = layers * (attention + all_experts) + embedding * (1 if tied else 2)
    return ModelShape(
        name=name,
        weight_bytes=BYTES_PER_VALUE * parameters,
        kv_bytes_per_token=BYTES_PER_VALUE * 2 * layers * kv_heads * head_dim,
        flops_per_token=2 * (layers * (attention + active_experts) + embedding),
        attention_flops_per_token2=2 * layers * heads * head_dim,
        attention_heads=heads,
        kv_heads=kv_heads,
        parameters=parameters,
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary,
    )


def _feed_forward(text: Mapping[str, Any], name: str, hidden: int) -> tuple[int, int]:
    """Weights of one layer's feed-forward part, and those that one token passes through."""
    experts = next((int(text[k]) for k in ("num_experts", "num_local_experts", "n_routed_experts") if text.get(k)), 0)
    if not experts:
        dense = 3 * hidden * _size(text, name, "intermediate_size")
        return dense, dense
    expert = 3 * hidden * int(text.get("moe_intermediate_size") or _size(text, name, "intermediate_size"))
    return experts * expert, _size(text, name, "num_experts_per_tok") * expert


def _size(text: Mapping[str, Any], name: str, key: str) -> int:
    value = text.get(key)
    if not isinstance(value, int) or value < 1:
        raise ConfigError("model", name, f"its config.json has {key}={value!r}, needs a whole number >= 1")
    return value
