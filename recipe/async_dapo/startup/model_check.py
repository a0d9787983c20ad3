"""Whether verl can load the model and computes its log-probs with these options, whether its context holds the longest
response that they allow, and whether trainer and engines fit on the same GPUs.
"""

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig
from safetensors import safe_open

from ..config.options import model_setup, training_gpus
from ..config.values import ConfigError, Placement, Rule, check_each, check_rules, refused
from ..core.trainer_memory import ASSUMED_GPU, Gpu, TrainerMemory
from .agent_loop_check import shipped_modules

_MODEL, _ROLLOUT = "actor_rollout_ref.model.", "actor_rollout_ref.rollout."
_TIED = ("lm_head.weight", "embed_tokens.weight")
_ROWS = 64  # of either, to compare them by
_ATTENTION = _MODEL + "override_config.attn_implementation"
_PACKS = _MODEL + "use_remove_padding"
_FSDP = "actor_rollout_ref.actor.fsdp_config."
_SPLITS = _FSDP + "ulysses_sequence_parallel_size"
_HALF = ("bf16", "bfloat16", "fp16", "float16")
_QWEN3_5 = ("qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text")
_RUN_ON = {"linear_attention", "conv", "mamba", "recurrent"}  # layers that take a row for one sequence

# With these verl 0.9.1's FSDP and transformers 5.10 compute other log-probs than the model's, and say nothing, or end
# in their workers. Facts are a `ModelSetup`.
# fmt: off
WRONG_LOG_PROBS: tuple[Rule, ...] = (
    Rule(_SPLITS, lambda it: it.split_over > 1 and not it.packs,
         f"sequences are split only where they are packed; set 1, or {_PACKS}=True", lambda it: it.split_over),
    Rule(_SPLITS, lambda it: it.split_over > 1 and not it.is_flash,
         f"only flash attention attends over all ranks of a sequence; set 1, or {_ATTENTION}=flash_attention_2",
         lambda it: it.split_over),
    Rule(_PACKS, lambda it: it.packs and it.model_type not in _QWEN3_5 and it.layers & _RUN_ON,
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


def load_by_verl(config: DictConfig) -> Any:
    """The `HFModelConfig` that verl makes once a cluster has started: the model's configuration, and its tokenizer.

    Raises:
        ConfigError: where verl would fail.
    """
    try:
        with shipped_modules(config):  # nothing is copied to /dev/shm yet
            return instantiate(config.actor_rollout_ref.model, use_shm=False, _convert_="partial")
    except HydraException as error:
        why = " ".join(f"{type(error.__cause__).__name__}: {error.__cause__}".split())
        raise refused(config, _MODEL + "path", f"verl cannot load it: {why}; correct path or options") from error


def count_parameters(config: DictConfig) -> int | None:
    """The parameters of the model that verl would train, built without its weights. None for a model that cannot be
    built so, or not loaded, which `check_model` tells.
    """
    from verl.utils.model import get_hf_auto_model_class

    options = {"attn_implementation": "eager", "trust_remote_code": config.actor_rollout_ref.model.trust_remote_code}
    try:
        hf_config = deepcopy(load_by_verl(config).hf_config)
        with torch.device("meta"):
            model = get_hf_auto_model_class(hf_config).from_config(hf_config, **options)
    except Exception:  # of the model's own code, or of a model that is not known here
        return None
    return sum(each.numel() for each in model.parameters())


def check_model(config: DictConfig) -> None:
    """Check how it is computed, and its context.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    model, wrong = load_by_verl(config), WRONG_LOG_PROBS if config.model_engine == "dp" else ()
    check_each(
        [
            partial(check_rules, wrong, model_setup(config, model), config),
            partial(_check_output_layer, config, model),
            partial(_check_host_kv, config, model),
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
            _MODEL + "path",
            "its config.json has tie_word_embeddings=true, and its checkpoint an output layer of its own, which "
            "engines would leave out; set it to false",
        )


def _check_host_kv(config: DictConfig, model: Any) -> None:
    """Blocks of tokens go to host memory; a layer that runs on has one state, of all tokens so far."""
    if config.async_dapo.host_kv_gib is not None and (found := model_setup(config, model).layers & _RUN_ON):
        raise refused(
            config,
            "async_dapo.host_kv_gib",
            f"the model has layers of {', '.join(sorted(found))}, whose state is not kept; set null, and "
            "async_dapo.rollout_strategy=partial",
        )


def _check_context(config: DictConfig, model: Any) -> None:
    """Engines would cut responses short, without a word, where they or the model have no room for them."""
    from verl.workers.rollout.utils import get_max_position_embeddings

    rollout, data = config.actor_rollout_ref.rollout, config.data
    longest_tok = data.max_prompt_length + data.max_response_length
    try:
        context_tok = get_max_position_embeddings(model.hf_config)
    except ValueError as error:
        raise refused(config, _MODEL + "path", f"verl says: {error}; take another model") from error
    if not longest_tok <= (rollout.max_model_len or context_tok) <= context_tok:
        raise refused(
            config,
            _ROLLOUT + "max_model_len",
            f"must be null, or in {longest_tok}..{context_tok}: data.max_prompt_length + data.max_response_length = "
            f"{longest_tok}, and the model has {context_tok} positions; lower the former, or take another model",
        )


def check_memory(config: DictConfig, assumed_gpu: Gpu = ASSUMED_GPU) -> str:
    """Compare what engines may take with what the trainer leaves them.

    Refused is what is certain: weights, gradients and optimizer, on this machine's GPUs. A warning is what counts
    activations too, which depend on the lengths, or what assumes a GPU.

    Args:
        assumed_gpu: the one to count with where this machine has none.

    Returns:
        The warning; empty where all fits, or where it is not known.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    is_separate = config.async_dapo.placement == Placement.SEPARATE
    if is_separate or config.trainer.device == "cpu" or actor.strategy not in ("fsdp", "fsdp2"):
        return ""
    if (parameters := count_parameters(config)) is None:
        return ""
    here = gpu_here()
    gpu = here or assumed_gpu
    memory_bytes, trainer = 1e9 * gpu.memory_gb, trainer_of(config, parameters)
    asked, keeps_kv = rollout.gpu_memory_utilization, not rollout.free_cache_engine
    certain = trainer.engine_share(memory_bytes, keeps_kv=keeps_kv, with_activations=False)
    likely = trainer.engine_share(memory_bytes, keeps_kv=keeps_kv)
    if asked <= likely:
        return ""
    is_certain = here is not None and asked > certain
    limit = certain if is_certain else likely
    stays = trainer.state_bytes if keeps_kv else trainer.resident_bytes
    remedy = f"use more GPUs, or actor.strategy=fsdp2 with {_FSDP}offload_policy=True"
    if limit > 0:
        offload = (
            "free_cache_engine=True" if keeps_kv else f"{_FSDP}param_offload=True and {_FSDP}optimizer_offload=True"
        )
        remedy = f"set at most {limit - 0.005:.2f}, or {offload}, or use more GPUs"
    error = ConfigError(
        _ROLLOUT + "gpu_memory_utilization",
        asked,
        f"engines and trainer do not fit on {gpu.name} of {gpu.memory_gb:.0f} GB: weights, gradients and optimizer "
        f"take {trainer.state_bytes / 1e9:.1f} GB, a micro batch about {trainer.activation_bytes / 1e9:.1f}; while "
        f"engines generate, {stays / 1e9:.1f} GB stay; {remedy}",
    )
    if is_certain:
        raise error
    return str(error)


def check_host_memory(config: DictConfig) -> None:
    """On this machine, where engines may run on it.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    gib, gpus = config.async_dapo.host_kv_gib, config.trainer.n_gpus_per_node
    free_gib = psutil.virtual_memory().available / 2**30
    if gib is not None and gib * gpus > free_gib and (gpu_here() or config.trainer.device == "cpu"):
        raise ConfigError(
            "async_dapo.host_kv_gib",
            gib,
            f"for each of the {gpus} GPUs of a node; {free_gib:.0f} GiB of host memory are free here; set at most "
            f"{free_gib / gpus:.0f}, less what trainer.n_gpus_per_node training workers offload",
        )


def gpu_here() -> Gpu | None:
    """One of this machine's."""
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return Gpu(name=found.name, memory_gb=found.total_memory / 1e9)


def trainer_of(config: DictConfig, parameters: int) -> TrainerMemory:
    """The actor alone: a critic comes on top."""
    actor, options = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    fsdp = actor.fsdp_config
    longest_tok = config.data.max_prompt_length + config.data.max_response_length
    model = load_by_verl(config).hf_config.get_text_config()
    return TrainerMemory(
        parameters=parameters,
        shards=fsdp.fsdp_size if fsdp.fsdp_size > 0 else training_gpus(config),
        layers=model.num_hidden_layers,
        hidden=model.hidden_size,
        vocabulary=model.vocab_size,
        micro_batch_tok=(
            actor.ppo_max_token_len_per_gpu
            if actor.use_dynamic_bsz
            else (actor.ppo_micro_batch_size_per_gpu or 1) * longest_tok
        ),
        value_bytes=2 if fsdp.model_dtype in _HALF else 4,
        is_adapter=bool(options.lora_rank),
        checkpoints_activations=options.enable_gradient_checkpointing,
        has_logits=not options.use_fused_kernels,
        offloads_weights=fsdp.param_offload,
        offloads_optimizer=fsdp.optimizer_offload,
        stays_on_host=bool(fsdp.offload_policy) and actor.strategy == "fsdp2",
    )
