"""What of a language model decides its speed: weights, KV cache per token, arithmetic per token."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..options.values import ConfigError, did_you_mean
from .model_presets import PRESETS

BYTES_PER_VALUE = 2  # bf16 weights and KV cache


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer, as far as its speed goes."""

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
    if source.lower() in PRESETS:
        return shape_of(PRESETS[source.lower()], name=source.lower())
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    cached = None if path.exists() else _cached_config(source)
    try:
        config = json.loads((cached or path).read_text())
    except FileNotFoundError:
        raise ConfigError(
            "model",
            source,
            f"no such file{did_you_mean(source, PRESETS)}; give a config.json, its folder, a model in "
            f"Hugging Face's cache, or one of {', '.join(PRESETS)}",
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
