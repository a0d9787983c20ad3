"""A model's sizes by its config.json."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...async_dapo.config.values import ConfigError

# Kinds of layers without a KV cache, and with one of a window, by transformers' names. All others hold every token.
_NO_CACHE = ("linear_attention", "conv", "mamba", "moe")
_WINDOWED = ("sliding_attention", "chunked_attention")
# Where a config.json has a window but not its layers, all but each n-th layer of these models have it.
_WINDOW_PATTERNS = {"gemma2": 2, "gemma3_text": 6}
BYTES_PER_VALUE = 2  # bf16 weights and KV cache
_MOST, _MOST_LAYERS = 100_000_000, 10_000  # of a size that a config.json gives


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder-only transformer, dense or a mixture of experts, with grouped-query attention in some or all
    of its layers, and what they come to. All KV heads are counted once; see `copied`.
    """

    name: str
    hidden: int
    layers: int
    vocabulary: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    parameters: int  # those of a vision tower included
    active_parameters: int  # those that a token is multiplied with
    experts: int  # of a layer, of which a router chooses; 0: dense
    experts_per_token: int
    expert_parameters: int  # of all of them, in all layers
    full_layers: int  # those whose KV cache holds every token
    window_layers: int  # those whose KV cache holds the last `window_tok` tokens
    window_tok: int
    state_bytes: int  # of the linear-attention layers' state of a request, whatever its context
    weight_bytes: float
    kv_bytes_per_token: float  # of the layers that keep every token
    window_bytes_per_token: float  # of those that keep a window

    def request_bytes(self, context_tok: int) -> float:
        """What a request with this context or less holds beside `kv_bytes_per_token` of each token, at most: the
        windows, and the state of linear attention.
        """
        windows = self.window_bytes_per_token * min(self.window_tok, context_tok)
        return windows + self.state_bytes

    def copied(self, tensor_parallel_size: int) -> "ModelShape":
        """On so many GPUs together, each of which has a whole KV head at least: of few heads there are copies."""
        copies = max(1.0, tensor_parallel_size / self.kv_heads)
        return replace(
            self,
            kv_bytes_per_token=copies * self.kv_bytes_per_token,
            window_bytes_per_token=copies * self.window_bytes_per_token,
        )

    @property
    def has_state(self) -> bool:
        """Whether some layers keep one state of all tokens so far in place of a KV cache."""
        return self.full_layers + self.window_layers < self.layers

    @property
    def expert_share(self) -> float:
        """Share of the weights that is in experts."""
        return self.expert_parameters / self.parameters

    @property
    def flops_per_token(self) -> float:
        """Matrix products of one token's forward pass, without attention to every token."""
        windows = 4 * self.window_layers * self.attention_heads * self.head_dim * self.window_tok
        return 2 * self.active_parameters + windows

    @property
    def attention_flops_per_token2(self) -> float:
        """Causal attention over a context of c tokens costs this times c^2."""
        return 2 * self.full_layers * self.attention_heads * self.head_dim

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
    if not isinstance(config, dict):
        raise ConfigError("model", source, "is JSON, but no object; give a Hugging Face config.json")
    return config, source if cached else path.parent.name or path.stem


def _cached_config(source: str) -> Path | None:
    with suppress(ImportError, ValueError):  # the planner does without the hub; a path is no name of a model
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(source, "config.json")
        return Path(found) if isinstance(found, str) else None
    return None


_TIED = ("gemma2", "gemma3_text", "cohere2", "lfm2")  # by transformers' default; files leave defaults out


def shape_of(config: Mapping[str, Any], *, name: str) -> ModelShape:
    """The sizes that a config.json gives.

    Raises:
        ConfigError: when a field is missing or no size, or the attention is of another kind.
    """
    text = _part(config, name, "text_config") or config
    if "kv_lora_rank" in text:
        raise ConfigError(
            "model",
            name,
            "latent attention is not modelled; take a model of its size whose queries share keys, as Qwen3's",
        )
    layers = _size(text, name, "num_hidden_layers", most=_MOST_LAYERS)
    hidden, heads, vocabulary = (_size(text, name, k) for k in ("hidden_size", "num_attention_heads", "vocab_size"))
    kv_heads = _size(text, name, "num_key_value_heads", default=heads)
    head_dim = _size(text, name, "head_dim", default=hidden // heads)
    if not head_dim:
        raise ConfigError("model", name, f"its config.json has {heads} attention heads, more than hidden_size={hidden}")
    kinds = _layer_kinds(text, name, layers)
    window_tok = _size(text, name, "sliding_window", default=_size(text, name, "attention_chunk_size", default=0))
    windowed = sum(kind in _WINDOWED for kind in kinds) if window_tok else 0
    linear = kinds.count("linear_attention")
    linear_weights, state_bytes = _linear_attention(text, name, hidden)
    gates = heads if text.get("attn_output_gate", linear and linear_weights) else 0  # Qwen's hybrids have them
    full_weights = hidden * head_dim * (2 * heads + 2 * kv_heads + gates)
    attention = (layers - linear) * full_weights + linear * (linear_weights or full_weights)
    experts, experts_per_token, expert = _experts(text, name, hidden)
    always = _always_active(text, name, hidden, experts)
    embedding = vocabulary * hidden
    ties = text.get("model_type") in _TIED  # where no file says it
    tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", ties)))
    parameters = attention + layers * (always + experts * expert) + embedding * (1 if tied else 2)
    parameters += _vision_tower(_part(config, name, "vision_config"), name)
    full_layers = layers - windowed - sum(kind in _NO_CACHE for kind in kinds)
    layer_bytes = BYTES_PER_VALUE * 2 * kv_heads * head_dim
    return ModelShape(
        name=name,
        hidden=hidden,
        layers=layers,
        vocabulary=vocabulary,
        attention_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        parameters=parameters,
        active_parameters=attention + layers * (always + experts_per_token * expert) + embedding,
        experts=experts,
        experts_per_token=experts_per_token,
        expert_parameters=layers * experts * expert,
        full_layers=full_layers,
        window_layers=windowed,
        window_tok=window_tok,
        state_bytes=linear * state_bytes,
        weight_bytes=BYTES_PER_VALUE * parameters,
        kv_bytes_per_token=full_layers * layer_bytes,
        window_bytes_per_token=windowed * layer_bytes,
    )


def _part(config: Mapping[str, Any], name: str, key: str) -> Mapping[str, Any]:
    """A part of a config.json, empty where it has none."""
    part = config.get(key) or {}
    if not isinstance(part, Mapping):
        raise ConfigError("model", name, f"its config.json has {key}={part!r}, needs an object")
    return part


def _layer_kinds(text: Mapping[str, Any], name: str, layers: int) -> Sequence[str]:
    """The kind of each layer, as far as a config.json says it: its list, one full layer in so many, or all full.

    A model whose layers are all of other kinds is counted as one of full attention.
    """
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if not kinds:
        every, other = _size(text, name, "full_attention_interval", default=0), "linear_attention"
        if not every and text.get("sliding_window"):
            usual = _WINDOW_PATTERNS.get(str(text.get("model_type")), 1)
            every, other = _size(text, name, "sliding_window_pattern", default=usual), "sliding_attention"
        every = every or 1
        kinds = [other if (i + 1) % every else "full_attention" for i in range(layers)]
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise ConfigError("model", name, f"its config.json lists its layers as {kinds!r}, needs a list of their kinds")
    kinds = kinds[:layers]  # some files name those of the head that drafts, too
    has_full = any(kind not in (*_NO_CACHE, *_WINDOWED) for kind in kinds)
    return kinds if has_full else ["full_attention"] * layers


def _linear_attention(text: Mapping[str, Any], name: str, hidden: int) -> tuple[int, int]:
    """Weights of a layer of gated linear attention (query, key, value, gate, output), and bytes of its state; both 0
    where a config.json does not say them. vLLM keeps the state in the `mamba_ssm_dtype` that a config.json names.
    """
    key_dim, value_dim = (_size(text, name, f"linear_{of}_head_dim", default=0) for of in ("key", "value"))
    key_heads, value_heads = (_size(text, name, f"linear_num_{of}_heads", default=0) for of in ("key", "value"))
    weights = hidden * (2 * key_heads * key_dim + 3 * value_heads * value_dim)
    state_value_bytes = 4 if text.get("mamba_ssm_dtype") == "float32" else BYTES_PER_VALUE
    return weights, state_value_bytes * value_heads * key_dim * value_dim


def _experts(text: Mapping[str, Any], name: str, hidden: int) -> tuple[int, int, int]:
    """Experts of a layer that a router chooses from, those of a token, and weights of one; all 0 of a dense model."""
    keys = ("num_experts", "num_local_experts", "n_routed_experts")
    experts = next((_size(text, name, key) for key in keys if text.get(key)), 0)
    if not experts:
        return 0, 0, 0
    inner = "moe_intermediate_size" if text.get("moe_intermediate_size") else "intermediate_size"
    expert = 3 * hidden * _size(text, name, inner)
    return experts, _size(text, name, "num_experts_per_tok", most=experts), expert


def _always_active(text: Mapping[str, Any], name: str, hidden: int, experts: int) -> int:
    """Weights of one layer's feed-forward part that every token passes through: with experts, a router and those that
    are shared.
    """
    if not experts:
        return 3 * hidden * _size(text, name, "intermediate_size")
    of_one, shared, inner = (
        _size(text, name, key, default=0)
        for key in ("shared_expert_intermediate_size", "n_shared_experts", "moe_intermediate_size")
    )
    return 3 * hidden * (of_one + shared * inner) + hidden * experts


def _vision_tower(vision: Mapping[str, Any], name: str) -> int:
    """Weights of its layers, without what is before and after them."""
    layers, hidden, inner = (
        _size(vision, name, key, default=0) for key in ("depth", "hidden_size", "intermediate_size")
    )
    return layers * hidden * (4 * hidden + 2 * inner)


def _size(part: Mapping[str, Any], name: str, key: str, *, most: int = _MOST, default: int | None = None) -> int:
    """
    Args:
        default: where a config.json leaves it out, or says null, False or 0; None: it must not.
    """
    value = part.get(key)
    if default is not None and not value:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError("model", name, f"its config.json has {key}={value!r}, needs a whole number in 1..{most}")
    return value
