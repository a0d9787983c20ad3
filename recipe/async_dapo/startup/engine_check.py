"""Engines: their number, their calls, their memory, what they may be asked for at once, and what `engine_kwargs.vllm`
hands to vLLM behind verl's own options.
"""

import ast
import logging
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from ..config import AsyncDAPOConfig, Auto, Placement, engine_gpus, gpus_per_engine
from ..core.leases import MAX_PENDING_CALLS, server_calls
from ..option_values import (
    SUFFIX_PACKAGE,
    ConfigError,
    Drafts,
    ImportanceSampling,
    SpeculativeConfig,
    check_each,
    did_you_mean,
    own_head_drafts,
    refused,
)

logger = logging.getLogger(__name__)

_ROLLOUT = "actor_rollout_ref.rollout."
_KWARGS = _ROLLOUT + "engine_kwargs.vllm."

# vLLM's name -> the option of `rollout` from which verl, and this recipe's checks, take it.
_SAME_NAME = """
    data_parallel_size disable_log_stats dtype enable_chunked_prefill enable_prefix_caching enable_sleep_mode
    enforce_eager gpu_memory_utilization load_format logprobs_mode max_model_len max_num_batched_tokens max_num_seqs
    scheduling_policy seed
"""
OVERRIDDEN = {name: name for name in _SAME_NAME.split()} | {
    "tensor_parallel_size": "tensor_model_parallel_size",
    "pipeline_parallel_size": "pipeline_model_parallel_size",
}


def check_engines(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Check the engines' options against the GPUs, against this recipe's, and against vLLM's.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    check_each(
        [
            partial(_check_engine_kwargs, config),
            partial(_check_waiting, config, options),
            partial(_check_calls, config, options),
            partial(_check_gpus, config),
            partial(_check_separate, config),
            partial(_check_cache, config, options),
            partial(_check_attention, config),
            partial(_check_drafts, config, options),
            partial(_check_quantized, config, options),
        ]
    )
    _warn_of_stale_pool(options)


def _check_waiting(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """A pool that sizes itself holds no more than the engines have room for."""
    if options.rollout_pool_size is Auto.AUTO:
        return
    if options.fixed_pool_size is None:
        key, waiting = "max_concurrent_prompts", options.lanes_hold
    else:  # a group starts while there is one place for its n
        key, waiting = "rollout_pool_size", options.fixed_pool_size + options.rollout_n - 1
    if waiting >= MAX_PENDING_CALLS:
        raise refused(
            config,
            f"async_dapo.{key}",
            f"{options.num_workers} workers could wait with {waiting} requests at once, and the load balancer takes "
            f"{MAX_PENDING_CALLS} calls; lower it",
        )


def _warn_of_stale_pool(options: AsyncDAPOConfig) -> None:
    """A pool of a fixed size is the user's, also where `auto` would hold less."""
    bound = options.round_size().staleness_bound(1.0) if options.most_trainable is not None else None
    if bound is not None and options.fixed_pool_size is not None and options.fixed_pool_size > bound:
        logger.warning(
            "async_dapo.rollout_pool_size=%d: with responses of half their limit, more than %d trajectories in flight "
            "pass async_dapo.max_staleness=%d before they are trained, and tokens are masked or thrown away; set auto, "
            "or raise async_dapo.max_staleness",
            options.fixed_pool_size,
            bound,
            options.max_staleness,
        )


def _check_calls(config: DictConfig, options: AsyncDAPOConfig) -> None:
    rollout = config.actor_rollout_ref.rollout
    limit = server_calls(rollout.max_num_seqs * rollout.data_parallel_size)
    if options.max_loads_per_server is not None and options.max_loads_per_server >= limit:
        raise refused(
            config,
            "async_dapo.max_loads_per_server",
            f"must be below {limit}, the concurrent calls of a vLLM server actor: weight updates and the stop would "
            "wait behind generation; lower it or raise actor_rollout_ref.rollout.max_num_seqs",
        )


def _check_gpus(config: DictConfig) -> None:
    """Whichever GPUs engines run on, they are whole engines."""
    is_separate = config.async_dapo.placement == Placement.SEPARATE
    owner = "actor_rollout_ref.rollout" if is_separate else "trainer"
    if is_separate:
        for name in ("nnodes", "n_gpus_per_node"):
            if OmegaConf.select(config, _ROLLOUT + name) < 1:
                raise refused(config, _ROLLOUT + name, "must be >= 1: async_dapo.placement=separate runs engines there")
    elif config.actor_rollout_ref.rollout.nnodes:
        raise refused(
            config,
            _ROLLOUT + "nnodes",
            "with async_dapo.placement=colocated engines share the trainer's GPUs; set async_dapo.placement=separate, "
            "or 0",
        )
    per_engine = gpus_per_engine(config)
    if per_engine < 1 or engine_gpus(config) % per_engine:
        raise refused(
            config,
            _ROLLOUT + "tensor_model_parallel_size",
            f"an engine takes {per_engine} GPUs, which does not divide the {engine_gpus(config)} of {owner}.nnodes x "
            f"{owner}.n_gpus_per_node",
        )


def _check_separate(config: DictConfig) -> None:
    """What stands in the way of engines on GPUs of their own."""
    if config.async_dapo.placement != Placement.SEPARATE:
        return
    lora = "actor_rollout_ref.model.lora"
    if OmegaConf.select(config, f"{lora}_rank") and not OmegaConf.select(config, f"{lora}.merge"):
        raise refused(
            config,
            f"{lora}_rank",
            "with async_dapo.placement=separate engines get whole weights; set actor_rollout_ref.model.lora.merge=True",
        )


def _check_cache(config: DictConfig, options: AsyncDAPOConfig) -> None:
    frees_cache = config.actor_rollout_ref.rollout.free_cache_engine
    if options.keeps_kv and frees_cache and options.placement is Placement.COLOCATED:
        raise refused(
            config,
            _ROLLOUT + "free_cache_engine",
            f"async_dapo.rollout_strategy={options.rollout_strategy} keeps the KV cache while the actor trains; set "
            "False, and gpu_memory_utilization so low that both fit",
        )
    if frees_cache and OmegaConf.select(config, _ROLLOUT + "enable_sleep_mode") is False:
        raise refused(config, _ROLLOUT + "enable_sleep_mode", "engines cannot sleep; set free_cache_engine=False too")


def _check_drafts(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """vLLM has one source of drafts, and one that is its own runs beside the model."""
    rollout = config.actor_rollout_ref.rollout
    own = SpeculativeConfig.of(rollout.engine_kwargs.vllm)
    has_mtp = own_head_drafts(rollout)
    if options.drafts is not None:
        key = f"async_dapo.drafts={options.drafts}"
        if own is not None:
            raise ConfigError(_KWARGS + own.key, dict(own.config), f"{key} takes its place; leave one of them out")
        if has_mtp:
            raise ConfigError(_ROLLOUT + "mtp.enable_rollout", True, f"{key} takes its place; set one of them off")
    is_own_suffix = own is not None and own.config.get("method") == Drafts.SUFFIX
    if (options.drafts is Drafts.SUFFIX or is_own_suffix) and find_spec("arctic_inference") is None:
        key = f"{_KWARGS}{own.key}.method" if own is not None else "async_dapo.drafts"
        raise ConfigError(key, Drafts.SUFFIX, f"vLLM needs a package for it; run: pip install {SUFFIX_PACKAGE}")
    if own is not None:
        _check_own_drafts(own, load_format=rollout.load_format)
    elif has_mtp and rollout.load_format == "dummy":
        raise refused(
            config,
            _ROLLOUT + "load_format",
            "with mtp.enable_rollout=True the model's own head drafts, and FSDP neither trains nor brings it: it would "
            "draft at random; set auto, which loads it from the checkpoint, or mtp.enable_rollout=False",
        )
    if own is not None or options.drafts is not None or has_mtp:
        for name, value in rollout.engine_kwargs.vllm.items():
            if str(name).replace("-", "_") == "logits_processors" and value:
                raise ConfigError(
                    _KWARGS + str(name), value, "vLLM refuses them where it verifies drafts; leave them out"
                )


def _check_own_drafts(own: SpeculativeConfig, *, load_format: str) -> None:
    if own.config.get("rejection_sample_method") == "synthetic":
        raise ConfigError(
            f"{_KWARGS}{own.key}.rejection_sample_method",
            "synthetic",
            "accepts drafts by chance, whatever the policy says; leave it out",
        )
    if own.has_weights and load_format == "dummy" and not own.config.get("draft_load_config"):
        raise ConfigError(
            f"{_KWARGS}{own.key}.draft_load_config",
            None,
            f"with {_ROLLOUT}load_format=dummy the model that drafts would keep random weights, as no weight update "
            "brings others; set {load_format: auto}",
        )


_NOT_QUANTIZED = (None, "auto", "float16", "bfloat16")
_MOST_WEIGHT = 2.0


def _check_quantized(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """With weights or a KV cache of fewer bits the engines sample from another distribution than the trainer's."""
    rollout = config.actor_rollout_ref.rollout
    named = {
        str(key).replace("-", "_"): (_KWARGS + str(key), value) for key, value in rollout.engine_kwargs.vllm.items()
    }
    cache_key, cache = named.get("kv_cache_dtype", ("", None))
    quantized = [(_ROLLOUT + "quantization", rollout.quantization), named.get("quantization", ("", None))]
    if cache not in _NOT_QUANTIZED:
        _check_cache_type(cache_key, cache, options, *named.get("calculate_kv_scales", ("", False)))
        quantized.append((cache_key, cache))
    for key, value in quantized:
        if value is not None and not _truncates_tokens(config, options.importance_sampling):
            raise ConfigError(
                key,
                value,
                "engines sample from another distribution than the trainer's, which needs a weight for each token, "
                f"truncated at {_MOST_WEIGHT:g}; set async_dapo.importance_sampling=decoupled, "
                "algorithm.rollout_correction.rollout_is=token and "
                f"algorithm.rollout_correction.rollout_is_threshold={_MOST_WEIGHT:g}",
            )


def _check_cache_type(key: str, value: str, options: AsyncDAPOConfig, scales_key: str, calculates: bool) -> None:
    if options.keeps_kv:
        raise ConfigError(
            key,
            value,
            f"async_dapo.rollout_strategy={options.rollout_strategy} keeps the cache over weight updates, and with it "
            "keys and values of other scales; choose partial, or leave it out",
        )
    if calculates:
        raise ConfigError(
            scales_key,
            calculates,
            "vLLM calculates scales once, of the weights that an engine starts with, and sets them to 1 when it wakes "
            "up; leave it out",
        )


def _truncates_tokens(config: DictConfig, mode: ImportanceSampling) -> bool:
    correction = config.algorithm.rollout_correction
    upper = str(correction.rollout_is_threshold).rpartition("_")[2]
    return (
        mode in (ImportanceSampling.DECOUPLED, ImportanceSampling.BALANCE)
        and correction.rollout_is in (None, "token")
        and upper.replace(".", "", 1).isdecimal()
        and float(upper) <= _MOST_WEIGHT
    )


def _check_attention(config: DictConfig) -> None:
    """verl asks for flash attention unless told otherwise; its extra `vllm` does not bring the package.

    A driver without a GPU says nothing of the nodes that have one.
    """
    key = "actor_rollout_ref.model.override_config.attn_implementation"
    attention = OmegaConf.select(config, key) or "flash_attention_2"
    is_missing = torch.cuda.is_available() and not any(find_spec(package) for package in ("flash_attn", "kernels"))
    if config.trainer.device == "cuda" and attention == "flash_attention_2" and is_missing:
        raise ConfigError(
            key,
            attention,
            "the trainer needs the package flash-attn; run: pip install --no-build-isolation flash-attn==2.8.3, or set "
            f"++{key}=sdpa and actor_rollout_ref.model.use_remove_padding=False",
        )


def _check_engine_kwargs(config: DictConfig) -> None:
    """Refuse an argument that vLLM does not have, or that contradicts an option of verl's."""
    rollout = config.actor_rollout_ref.rollout
    given = rollout.engine_kwargs.vllm.items()
    check_each([partial(_check_argument, rollout, str(key), value) for key, value in given if value is not None])


def _check_argument(rollout: DictConfig, key: str, value: Any) -> None:
    name = key.replace("-", "_")
    if name == "worker_extension_cls":
        raise ConfigError(_KWARGS + key, value, "is the recipe's own: it brings the weights; leave it out")
    if name in OVERRIDDEN and value != rollout.get(OVERRIDDEN[name]):
        option = OVERRIDDEN[name]
        raise ConfigError(
            _KWARGS + key,
            value,
            f"would take the place of {_ROLLOUT}{option}={rollout.get(option)} in vLLM alone, behind every check; "
            f"set {_ROLLOUT}{option} instead",
        )
    if name == "stream_interval" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ConfigError(_KWARGS + key, value, "must be a whole number of tokens, >= 1")
    known = vllm_arguments()
    if known and name not in known:
        hint = did_you_mean(name, known) or "; see `vllm serve --help`"
        raise ConfigError(_KWARGS + key, value, f"vLLM has no such argument{hint}")


@cache
def vllm_arguments() -> frozenset[str]:
    """Arguments of `vllm serve`, read from the installed source: to import vLLM takes longer than all checks.

    Empty where the source is not found.
    """
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        return frozenset()
    folder, names = Path(spec.origin).parent, set()
    for file in ("engine/arg_utils.py", "entrypoints/openai/cli_args.py"):
        source = folder / file
        if not source.is_file():
            return frozenset()
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith(("EngineArgs", "FrontendArgs")):
                names |= {
                    line.target.id
                    for line in node.body
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                }
    return frozenset(names)
