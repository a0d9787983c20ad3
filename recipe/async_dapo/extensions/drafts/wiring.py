"""How engines start that verify drafts."""

from typing import Any

from omegaconf import DictConfig, open_dict
from verl.workers.rollout.utils import get_max_position_embeddings

from ...config.options import AsyncDAPOConfig
from ...config.values import Drafts
from ...startup.model import load_by_verl
from ...weights.stream import CUSTOM_OPTIONS
from .speculative import SpeculativeConfig, speculative_config


def wire(config: DictConfig, options: AsyncDAPOConfig) -> None:
    rollout = config.actor_rollout_ref.rollout
    with open_dict(config):
        if options.drafts is not None:
            rollout.engine_kwargs.vllm.speculative_config = speculative_config(options.drafts, config)
        if options.drafts is Drafts.MTP and rollout.load_format == "dummy":
            rollout.load_format = "auto"  # vLLM's second model runner knows no other one for the head
        if (drafts := SpeculativeConfig.of(rollout.engine_kwargs.vllm)) is None:
            return
        # Asleep at level 2 an engine throws its weights away, and the trainer brings none of a model that drafts.
        rollout.custom[CUSTOM_OPTIONS]["keeps_weights"] = drafts.has_weights
        if rollout.max_model_len is not None:  # else the model's own limit
            rollout.engine_kwargs.vllm.update(_with_room(config, drafts))


def _with_room(config: DictConfig, drafts: SpeculativeConfig) -> dict[str, Any]:
    """vLLM drops all drafts of a step in which one sequence comes as near to the limit as a draft is long."""
    rollout = config.actor_rollout_ref.rollout
    most_context_tok = get_max_position_embeddings(load_by_verl(config).hf_config)
    longest_tok = max(rollout.max_model_len, min(rollout.max_model_len + drafts.most_tok, most_context_tok))
    if rollout.enable_chunked_prefill:
        return {"max_model_len": longest_tok}
    # vLLM computes a whole prompt at once.
    return {
        "max_model_len": longest_tok,
        "max_num_batched_tokens": max(rollout.max_num_batched_tokens, longest_tok),
    }
