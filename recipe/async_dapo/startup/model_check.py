"""Where the model is, whether verl can load it and computes its log-probs with these options, and whether its context
holds the longest response that they allow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from safetensors import safe_open

from ..option_values import ConfigError, check_each, refused
from .agent_loop_check import shipped_modules
from .hardware import ModelSize, find_config, size_of

_MODEL = "actor_rollout_ref.model."
_HUB_FILES = ("config.json", "tokenizer_config.json")
_HUB_LIMIT_S = 10.0
_TIED = ("lm_head.weight", "embed_tokens.weight")
_ROWS = 64  # of either, to compare them by


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """How verl's FSDP workers compute a model.

    Attributes:
        layers: its `layer_types`.
        packs: `use_remove_padding`: sequences lie in one row.
        split_over: ranks that share a sequence (Ulysses) [count].
    """

    model_type: str
    layers: frozenset[str]
    attention: str
    packs: bool
    split_over: int
    has_fla: bool

    @property
    def is_flash(self) -> bool:
        return "flash" in self.attention


_ATTENTION = _MODEL + "override_config.attn_implementation"
_PACKS = _MODEL + "use_remove_padding"
_SPLITS = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"
_QWEN3_5 = ("qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text")
_RUN_ON = {"linear_attention", "conv", "mamba", "recurrent"}  # layers that take a row for one sequence

# (what is wrong, key, remedy): verl 0.9.1 with transformers 5.10 computes other log-probs than the model's, and says
# nothing, or ends in its workers.
WRONG_LOG_PROBS: tuple[tuple[Callable[[ModelUse], bool], str, str], ...] = (
    (
        lambda use: use.split_over > 1 and not use.packs,
        _SPLITS,
        f"sequences are split only where they are packed; set 1, or {_PACKS}=True",
    ),
    (
        lambda use: use.split_over > 1 and not use.is_flash,
        _SPLITS,
        f"only flash attention attends over all ranks of a sequence; set 1, or {_ATTENTION}=flash_attention_2",
    ),
    (
        lambda use: use.packs and use.model_type not in _QWEN3_5 and bool(use.layers & _RUN_ON),
        _PACKS,
        "the model's linear, convolutional or recurrent layers run on from one packed sequence into the next; set "
        "False",
    ),
    (
        lambda use: use.packs and use.model_type in _QWEN3_5 and not use.has_fla,
        _PACKS,
        "keeps sequences apart in linear attention only with a package; run: pip install flash-linear-attention, or "
        "set False",
    ),
    (
        lambda use: use.packs and use.model_type == "gpt_oss" and not use.is_flash,
        _PACKS,
        "without flash attention gpt-oss attends from one packed sequence to those before; set False, or "
        f"{_ATTENTION} to a kind of flash attention",
    ),
    (
        lambda use: use.model_type == "gpt_oss" and use.attention == "sdpa",
        _ATTENTION,
        "gpt-oss has attention sinks, which sdpa lacks; set eager, or flash attention",
    ),
    (
        lambda use: use.model_type in ("qwen2_vl", "qwen2_5_vl"),
        _MODEL + "path",
        "verl 0.9.1 cannot train this class on text alone; take a model without vision, or of a newer class",
    ),
)


def local_folder(model: DictConfig, key: str) -> str:
    """The folder, or the hub's name, of what a key of the `model` node names; fetched first if it is remote.

    Raises:
        ConfigError: when it is a path that does not exist.
    """
    from verl.utils.fs import copy_to_local

    name: str = model[key]
    if name.startswith(("/", "~", ".")) and not Path(name).exists():
        raise ConfigError(_MODEL + key, name, "no such folder; correct the path (verl expands no ~)")
    return copy_to_local(name)


def model_size(model: DictConfig) -> ModelSize | None:
    """Of the model that a `model` node names; None for one whose size is not known, and for one that is missing, which
    `check_model` tells.
    """
    try:
        config, name = find_config(local_folder(model, "path"))
        return size_of(config, name=name)
    except (ConfigError, FileNotFoundError):
        return None


def load_by_verl(config: DictConfig) -> Any:
    """The `HFModelConfig` that verl makes once a cluster has started: the model's configuration, and its tokenizer.

    Raises:
        ConfigError: where verl would fail, and for a name of the hub whose files are not here and cannot be fetched.
    """
    model = config.actor_rollout_ref.model
    for key in ("path", "hf_config_path", "tokenizer_path"):
        if model.get(key) and not Path(folder := local_folder(model, key)).exists():
            _check_hub(folder, key)
    try:
        with shipped_modules(config):
            return instantiate(model, use_shm=False, _convert_="partial")  # nothing is copied to /dev/shm yet
    except HydraException as error:
        why = " ".join(f"{type(error.__cause__).__name__}: {error.__cause__}".split())
        raise refused(config, _MODEL + "path", f"verl cannot load it: {why}; correct path or options") from error


def _check_hub(name: str, key: str) -> None:
    from huggingface_hub import constants, try_to_load_from_cache

    if constants.HF_HUB_OFFLINE or any(try_to_load_from_cache(name, file) for file in _HUB_FILES):
        return
    if problem := hub_problem(constants.ENDPOINT):
        raise ConfigError(
            _MODEL + key,
            name,
            f"no folder here, not in the cache of the Hugging Face hub, and {constants.ENDPOINT} cannot be reached "
            f"({problem}); correct the path, or download the model first",
        )


@cache
def hub_problem(endpoint: str) -> str:
    """Why the hub cannot be reached; empty where it can. Its own client tries for most of a minute, file by file."""
    import httpx
    from huggingface_hub.utils import get_session

    try:
        get_session().head(endpoint, timeout=_HUB_LIMIT_S)
    except httpx.TransportError as error:
        return str(error)
    return ""


def check_model(config: DictConfig) -> None:
    """Check what is trained, how it is computed, and its context.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    model = load_by_verl(config)
    use = use_of(config, model)
    known = [partial(_check_log_probs, config, use, *row) for row in WRONG_LOG_PROBS]
    of_model = [partial(check, config, model) for check in (_check_output_layer, check_context)]
    check_each([partial(_check_adapter, config), *known, *of_model])


def _check_adapter(config: DictConfig) -> None:
    """FSDP trains all weights unless `lora_rank` is set."""
    model = config.actor_rollout_ref.model
    if not model.lora_rank:
        for key, why in (("lora.rank", "is Megatron's"), ("lora_adapter_path", "would be ignored")):
            if OmegaConf.select(model, key):
                raise refused(
                    config,
                    _MODEL + key,
                    f"{why}: with {_MODEL}lora_rank=0 FSDP trains all weights; set {_MODEL}lora_rank, or leave it out",
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
            _MODEL + "path",
            "its config.json has tie_word_embeddings=true, and its checkpoint an output layer that differs from the "
            "embeddings: engines would leave that out, and the trainer not; set it to false in config.json",
        )


def _check_log_probs(
    config: DictConfig, use: ModelUse, is_wrong: Callable[[ModelUse], bool], key: str, remedy: str
) -> None:
    if is_wrong(use):
        defaults = {_SPLITS: use.split_over, _ATTENTION: use.attention}  # verl's, or by an older name
        raise ConfigError(key, defaults.get(key, OmegaConf.select(config, key)), remedy)


def use_of(config: DictConfig, model: Any) -> ModelUse:
    """
    Args:
        model: what `load_by_verl` returns.
    """
    actor, name = config.actor_rollout_ref.actor, "ulysses_sequence_parallel_size"
    return ModelUse(
        model_type=model.hf_config.model_type,
        layers=frozenset(getattr(model.hf_config.get_text_config(), "layer_types", None) or ()),
        attention=str(model.hf_config._attn_implementation),
        packs=model.use_remove_padding,
        split_over=max(OmegaConf.select(actor, key) or 1 for key in (name, f"fsdp_config.{name}")),
        has_fla=find_spec("fla") is not None,
    )


def check_context(config: DictConfig, model: Any) -> None:
    """Engines would cut responses short, without a word, where they or the model have no room for them.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    from verl.workers.rollout.utils import get_max_position_embeddings

    rollout, data = config.actor_rollout_ref.rollout, config.data
    longest_tok, key = data.max_prompt_length + data.max_response_length, "actor_rollout_ref.rollout.max_model_len"
    if rollout.max_model_len is not None and rollout.max_model_len < longest_tok:
        raise refused(
            config,
            key,
            f"must be >= {longest_tok} = data.max_prompt_length + data.max_response_length: responses would be cut "
            "short; null = what the model allows",
        )
    try:
        context_tok = get_max_position_embeddings(model.hf_config)
    except ValueError as error:
        raise refused(config, _MODEL + "path", f"verl says: {error}; take another model") from error
    if context_tok < max(longest_tok, rollout.max_model_len or 0):
        raise refused(
            config,
            key,
            f"the model has {context_tok} positions (max_position_embeddings), and data.max_prompt_length + "
            f"data.max_response_length = {longest_tok}; lower these to fit, or take a model with a longer context",
        )
