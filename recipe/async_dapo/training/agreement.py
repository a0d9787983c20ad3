"""The first tokens of the newest weights, and what a run does with its model, for `core/agreement.py` to judge."""

import math

import torch
from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta
from verl.utils.config import omega_conf_to_dataclass

from .. import store
from ..core.agreement import ModelSetup, judge
from .importance_sampling import ratio_statistics, ratio_sums

_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def judge_engines(batch: KVBatchMeta, config: DictConfig, *, step: int, keeps_kv: bool) -> str | None:
    """Judge engines by a batch whose log-probs the trainer has computed.

    Args:
        keeps_kv: a resumed trajectory has keys and values of older weights, so its newest tokens do not count.

    Returns:
        What there is to warn of, maybe nothing; None if the batch has no token that counts.

    Raises:
        LogProbsDisagree: they do not sample from the trainer's policy.
    """
    data = store.read_padded(batch, ["response_mask", "policy_versions", "old_log_probs", "rollout_log_probs"])
    newest = step - 1
    counts_BT = data["response_mask"].bool() & (data["policy_versions"] >= newest)
    if keeps_kv:
        counts_BT &= torch.tensor([[tag["min_global_steps"] >= newest] for tag in batch.tags])
    if not counts_BT.any():
        return None
    # Of no finite log-prob there are no statistics.
    found = ratio_statistics(ratio_sums(data["old_log_probs"] - data["rollout_log_probs"], counts_BT))
    return judge(found.get("k3_kl", math.inf), tokens=int(counts_BT.sum()), setup=lambda: setup_of(config))


def setup_of(config: DictConfig) -> ModelSetup:
    """Of the actor and the engines."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    text = model.hf_config.get_text_config()
    precision = OmegaConf.select(actor, "fsdp_config.mixed_precision.param_dtype") or "bf16"  # verl's own default
    vllms = {str(key).replace("-", "_"): value for key, value in rollout.engine_kwargs.vllm.items()}
    return ModelSetup(
        model_type=model.hf_config.model_type,
        attention=model.hf_config._attn_implementation,
        packs=model.use_remove_padding,
        split_over=max(actor.ulysses_sequence_parallel_size, actor.fsdp_config.ulysses_sequence_parallel_size),
        trainer_dtype=_SHORT.get(precision, precision),
        engine_dtype=_SHORT.get(rollout.dtype, rollout.dtype),
        quantization=rollout.quantization or vllms.get("quantization"),
        kv_cache_dtype=vllms.get("kv_cache_dtype"),
        lora_rank=model.lora_rank,
        ties_head=bool(getattr(text, "tie_word_embeddings", False)),
        vocabulary=text.vocab_size,
        tokens=len(model.tokenizer),
    )
