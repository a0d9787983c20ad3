"""Whether verl can load the model and computes its log-probs with these options, and whether its context holds the
longest response that they allow.
"""

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from safetensors import safe_open

from ...config.values import Rule, check_each, check_rules, refused
from ...config.verl_keys import MODEL, ROLLOUT
from ...startup.model import RUN_ON, layers_of

_TIED = ("lm_head.weight", "embed_tokens.weight")
_ROWS = 64  # of either, to compare them by
_ATTENTION = MODEL + "override_config.attn_implementation"
_PACKS = MODEL + "use_remove_padding"
_SPLITS = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"
_QWEN3_5 = ("qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSetup:
    """How the trainer computes the model.

    Attributes:
        packs: `use_remove_padding`: sequences lie in one row.
        split_over: ranks that share a sequence (Ulysses) [count].
        layers: their types.
        has_fla: the package flash-linear-attention is installed.
    """

    model_type: str
    attention: str
    layers: frozenset[str]
    packs: bool
    split_over: int
    has_fla: bool

    @classmethod
    def of(cls, config: DictConfig, model: Any) -> "ModelSetup":
        """
        Args:
            model: verl's `HFModelConfig`.
        """
        keys = [f"{node}ulysses_sequence_parallel_size" for node in ("", "fsdp_config.")]
        return cls(
            model_type=model.hf_config.model_type,
            attention=str(model.hf_config._attn_implementation),
            layers=layers_of(model),
            packs=model.use_remove_padding,
            split_over=max(OmegaConf.select(config.actor_rollout_ref.actor, key) or 1 for key in keys),
            has_fla=find_spec("fla") is not None,
        )

    @property
    def is_flash(self) -> bool:
        return "flash" in self.attention


# With these verl 0.9.1's FSDP and transformers 5.10 compute other log-probs than the model's, and say nothing, or end
# in their workers. Facts are a `ModelSetup`.
# fmt: off
WRONG_LOG_PROBS: tuple[Rule, ...] = (
    Rule(_SPLITS, lambda it: it.split_over > 1 and not it.packs,
         f"sequences are split only where they are packed; set 1, or {_PACKS}=True", lambda it: it.split_over),
    Rule(_SPLITS, lambda it: it.split_over > 1 and not it.is_flash,
         f"only flash attention attends over all ranks of a sequence; set 1, or {_ATTENTION}=flash_attention_2",
         lambda it: it.split_over),
    Rule(_PACKS, lambda it: it.packs and it.model_type not in _QWEN3_5 and it.layers & RUN_ON,
         "the model's linear, convolutional or recurrent layers run on from one packed sequence into the next; set "
         "False"),
    Rule(_PACKS, lambda it: it.packs and it.model_type in _QWEN3_5 and not it.has_fla,
         "keeps sequences apart in linear attention only with a package; run: pip install flash-linear-attention, or "
         "set False"),
    Rule(_PACKS, lambda it: it.packs and it.model_type == "gpt_oss" and not it.is_flash,
         "without flash attention gpt-oss attends from one packed sequence to those before; set False, or "
         f"{_ATTENTION} to a kind of flash attention"),
    Rule(_ATTENTION, lambda it: it.model_type == "gpt_oss" and it.attention == "sdpa",
         "gpt-oss has attention sinks, which sdpa lacks; set eager, or flash attention", lambda it: it.attention),
)
# fmt: on


def check_model(config: DictConfig, model: Any) -> None:
    """Check how it is computed, and its context.

    Args:
        model: verl's `HFModelConfig`.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    wrong = WRONG_LOG_PROBS if config.model_engine == "dp" else ()
    check_each(
        [
            partial(check_rules, wrong, ModelSetup.of(config, model), config),
            partial(_check_output_layer, config, model),
            partial(_check_adapters, config, model),
            partial(_check_context, config, model),
        ]
    )


def _check_output_layer(config: DictConfig, model: Any) -> None:
    """transformers ties an output layer to the embeddings where both are equal, vLLM wherever config.json says so."""
    if not getattr(model.hf_config.get_text_config(), "tie_word_embeddings", False):
        return
    rows: dict[str, Any] = {}
    for file in Path(model.local_path).glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            names = [name for name in weights.keys() if name.endswith(_TIED)]  # noqa: SIM118 (it is no mapping)
            rows |= {name.rpartition("embed_tokens")[1]: weights.get_slice(name)[:_ROWS] for name in names}
    if len(rows) == len(_TIED) and not torch.equal(*rows.values()):
        raise refused(
            config,
            MODEL + "path",
            "its config.json has tie_word_embeddings=true, and its checkpoint an output layer of its own, which "
            "engines would leave out; set it to false",
        )


def _check_adapters(config: DictConfig, model: Any) -> None:
    """vLLM leaves out adapters of what sees pictures, and verl merges none outside of the layers that FSDP wraps. PEFT
    takes a text other than all-linear for a regular expression: with one, the user has named the layers.
    """
    lora = config.actor_rollout_ref.model
    names_layers = isinstance(lora.target_modules, str) and lora.target_modules != "all-linear"
    if not lora.lora_rank or lora.exclude_modules or names_layers or not hasattr(model.hf_config, "vision_config"):
        return
    raise refused(
        config,
        MODEL + "exclude_modules",
        f"adapters of {model.hf_config.model_type}'s vision tower would be trained, and never reach engines; set a "
        "regular expression of its names, such as '.*visual.*'",
    )


def _check_context(config: DictConfig, model: Any) -> None:
    """Engines would cut responses short, without a word, where they or the model have no room for them."""
    from verl.workers.rollout.utils import get_max_position_embeddings

    rollout, data = config.actor_rollout_ref.rollout, config.data
    longest_tok = data.max_prompt_length + data.max_response_length
    try:
        context_tok = get_max_position_embeddings(model.hf_config)
    except ValueError as error:
        raise refused(config, MODEL + "path", f"verl says: {error}; take another model") from error
    if longest_tok > context_tok:
        raise refused(
            config,
            "data.max_response_length",
            f"data.max_prompt_length + data.max_response_length = {longest_tok}, and the model has {context_tok} "
            f"positions; lower one of them, and {ROLLOUT}max_model_len if it is set, or take another model",
        )
    if not longest_tok <= (rollout.max_model_len or context_tok) <= context_tok:
        raise refused(
            config,
            ROLLOUT + "max_model_len",
            f"must be null, or in {longest_tok}..{context_tok}: data.max_prompt_length + data.max_response_length = "
            f"{longest_tok}, and the model has {context_tok} positions; set it to null",
        )
