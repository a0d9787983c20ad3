"""What decides how much memory a run takes: a GPU's own, and a model's sizes by its config.json."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..option_values import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, and how much it holds."""

    name: str
    memory_gb: float  # 1e9 bytes


ASSUMED_GPU = Gpu(name="h200 (assumed: no GPU here)", memory_gb=141)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Sizes of a decoder-only transformer, dense or a mixture of experts, with grouped-query attention."""

    name: str
    hidden: int
    layers: int
    vocabulary: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    parameters: int
    active_parameters: int  # those that a token is multiplied with


def find_config(source: str) -> tuple[dict[str, Any], str]:
    """A model's config.json and its name, given the file, a folder that holds it, or a model in Hugging Face's cache.

    Raises:
        FileNotFoundError: when there is none.
        ConfigError: when it cannot be read.
    """
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    cached = None if path.exists() else _cached_config(source)
    try:
        config = json.loads((cached or path).read_text())
    except FileNotFoundError:
        raise
    except (ValueError, OSError) as error:
        raise ConfigError(
            "model", source, f"cannot be read as JSON ({error}); give a Hugging Face config.json"
        ) from error
    return config, source if cached else path.parent.name or path.stem


def _cached_config(source: str) -> Path | None:
    with suppress(ImportError, ValueError):  # the planner does without the hub; a path is no name of a model
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(source, "config.json")
        return Path(found) if isinstance(found, str) else None
    return None


def size_of(config: Mapping[str, Any], *, name: str) -> ModelSize:
    """The sizes that a config.json gives.

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
    return ModelSize(
        name=name,
        hidden=hidden,
        layers=layers,
        vocabulary=vocabulary,
        attention_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        parameters=layers * (attention + all_experts) + embedding * (1 if tied else 2),
        active_parameters=layers * (attention + active_experts) + embedding,
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
