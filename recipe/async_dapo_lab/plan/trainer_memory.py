"""What the FSDP trainer takes of each GPU's memory, and the share of it that this leaves to engines on the same GPUs.

While engines generate, weights and optimizer stay on the GPU unless they are offloaded. While the trainer runs, all of
weights, gradients and optimizer are there, with the activations of one micro batch; engines have given their memory
back, unless they keep their KV cache. Sizes are the least that is needed: buffers, fragmentation, CUDA's own memory and
weights gathered for one layer come on top.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TRAINED_COPIES = 4  # of each value: weight, gradient and Adam's two moments, in the weights' type
LOGIT_BYTES = 4  # of a word of the vocabulary, for every token: bf16, with its gradient
CHECKPOINT_BYTES = 2  # of a value that a layer hands on, kept for the backward pass
LAYER_BYTES = 34  # of a hidden value within the layer that is computed again (Korthikanti et al., arXiv:2205.05198)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, and how much it holds."""

    name: str
    memory_gb: float  # 1e9 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerMemory:
    """A model under FSDP: bytes on each GPU.

    Args:
        shards: GPUs that share weights and optimizer [count].
        micro_batch_tok: of one forward and backward pass on a GPU [tokens]; 0 = not known, activations count nothing.
        value_bytes: of a weight; `fsdp_config.model_dtype` is fp32 by default.
        is_adapter: only a LoRA adapter is trained, whose own size counts nothing.
        offloads_weights: `fsdp_config.param_offload`: in host memory while engines generate.
        offloads_optimizer: `fsdp_config.optimizer_offload`: the same.
        stays_on_host: FSDP2's `fsdp_config.offload_policy`: in host memory, also while the trainer runs.
    """

    parameters: float
    shards: int
    layers: int = 0
    hidden: int = 0
    vocabulary: int = 0
    micro_batch_tok: int = 0
    value_bytes: int = 4
    is_adapter: bool = False
    checkpoints_activations: bool = True
    has_logits: bool = True  # fused kernels never hold them
    offloads_weights: bool = False
    offloads_optimizer: bool = False
    stays_on_host: bool = False

    @property
    def weight_bytes(self) -> float:
        return 0.0 if self.stays_on_host else self.value_bytes * self.parameters / self.shards

    @property
    def state_bytes(self) -> float:
        """Weights, gradients and optimizer, while the trainer runs."""
        return self.weight_bytes * (1 if self.is_adapter else TRAINED_COPIES)

    @property
    def activation_bytes(self) -> float:
        """Of one micro batch, roughly."""
        checkpointed = self.layers * CHECKPOINT_BYTES + LAYER_BYTES
        layers = checkpointed if self.checkpoints_activations else self.layers * LAYER_BYTES
        logits = LOGIT_BYTES * self.vocabulary if self.has_logits else 0
        return self.micro_batch_tok * (layers * self.hidden + logits)

    @property
    def resident_bytes(self) -> float:
        """What stays while engines generate."""
        weights = 0.0 if self.offloads_weights else self.weight_bytes
        has_optimizer = not (self.offloads_optimizer or self.is_adapter)
        return weights + (2 * self.weight_bytes if has_optimizer else 0.0)

    @property
    def copies_on_host(self) -> int:
        """Of a GPU's share of the weights, in host memory while engines generate: weights, Adam's two moments, and
        gradients where nothing ever leaves the host.
        """
        if self.stays_on_host:
            return 1 if self.is_adapter else TRAINED_COPIES
        return self.offloads_weights + 2 * (self.offloads_optimizer and not self.is_adapter)

    def engine_share(self, memory_bytes: float, *, keeps_kv: bool, with_activations: bool = True) -> float:
        """Largest share of a GPU's memory that engines may take (`gpu_memory_utilization`); below 0: none fits.

        Args:
            keeps_kv: engines keep their memory while the trainer runs (`free_cache_engine=False`).
            with_activations: False = only what is certain.
        """
        training = self.state_bytes + (self.activation_bytes if with_activations else 0.0)
        least = max(self.resident_bytes, training if keeps_kv or training > memory_bytes else 0.0)
        return 1 - least / memory_bytes


def pinned_bytes(config: Mapping[str, Any], *, parameters: int, shards: int, value_bytes: int) -> float:
    """A GPU's share of the weights in host memory. torch pins each tensor's shard apart, in a power of two of bytes,
    and never gives it back. Tensors that are not known, such as norms, count what they have.

    Args:
        config: of the model, as in its config.json.
    """
    text = config.get("text_config", config)
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    head = text.get("head_dim") or hidden // heads
    queries, keys = head * heads, head * (text.get("num_key_value_heads") or heads)
    experts = text.get("num_experts") or text.get("n_routed_experts") or text.get("num_local_experts")
    if experts:  # of all experts of a layer, one tensor for both ways up, and one for the way down
        up = experts * hidden * (text.get("moe_intermediate_size") or text["intermediate_size"])
        within = [2 * up, up]
    else:
        within = [hidden * text["intermediate_size"]] * 3
    layer = [hidden * queries] * 2 + [hidden * keys] * 2 + within
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    tensors = layer * text["num_hidden_layers"] + [hidden * text["vocab_size"]] * (1 if tied else 2)
    pinned = sum(1 << (-(-value_bytes * values // shards) - 1).bit_length() for values in tensors)
    return pinned + value_bytes * max(0, parameters - sum(tensors)) / shards
