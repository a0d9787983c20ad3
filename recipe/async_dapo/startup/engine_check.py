"""Engines: their number, their calls, their memory, and what they may be asked for at once."""

import logging
from functools import partial
from importlib.util import find_spec

import torch
from omegaconf import DictConfig, OmegaConf

from ..config import AsyncDAPOConfig, Auto, ConfigError
from ..options.values import check_each
from ..processes.actor_limits import MAX_PENDING_CALLS, server_calls
from .batch_sizes import num_gpus

logger = logging.getLogger(__name__)

_ROLLOUT = "actor_rollout_ref.rollout."


def check_engines(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Check the engines' options against the GPUs and against this recipe's.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    check_each(
        [
            partial(_check_waiting, options),
            partial(_check_engines, config, options),
            partial(_check_attention, config),
        ]
    )
    _warn_of_stale_pool(options)


def _check_waiting(options: AsyncDAPOConfig) -> None:
    """A pool that sizes itself holds no more than the engines have room for."""
    if options.rollout_pool_size is Auto.AUTO:
        return
    if options.fixed_pool_size is None:
        key, value, waiting = "max_concurrent_prompts", options.max_concurrent_prompts, options.lanes_hold
    else:  # a group starts while there is one place for its n
        key, value = "rollout_pool_size", options.fixed_pool_size
        waiting = options.fixed_pool_size + options.rollout_n - 1
    if waiting >= MAX_PENDING_CALLS:
        raise ConfigError(
            f"async_dapo.{key}",
            value,
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


def _check_engines(config: DictConfig, options: AsyncDAPOConfig) -> None:
    rollout = config.actor_rollout_ref.rollout
    limit = server_calls(rollout.max_num_seqs * rollout.data_parallel_size)
    if options.max_loads_per_server is not None and options.max_loads_per_server >= limit:
        raise ConfigError(
            "async_dapo.max_loads_per_server",
            options.max_loads_per_server,
            f"must be below {limit}, the concurrent calls of a vLLM server actor: weight updates and the stop would "
            "wait behind generation; lower it or raise actor_rollout_ref.rollout.max_num_seqs",
        )
    for key in ("trainer.nnodes", "trainer.n_gpus_per_node"):
        if OmegaConf.select(config, key) < 1:
            raise ConfigError(key, OmegaConf.select(config, key), "must be >= 1")
    per_engine = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    if per_engine < 1 or num_gpus(config) % per_engine:
        raise ConfigError(
            _ROLLOUT + "tensor_model_parallel_size",
            rollout.tensor_model_parallel_size,
            f"an engine takes {per_engine} GPUs, which does not divide the {num_gpus(config)} of trainer.nnodes x "
            "trainer.n_gpus_per_node",
        )
    if options.keeps_kv and rollout.free_cache_engine:
        raise ConfigError(
            _ROLLOUT + "free_cache_engine",
            True,
            f"async_dapo.rollout_strategy={options.rollout_strategy} keeps the KV cache while the actor trains; set "
            "False, and gpu_memory_utilization so low that both fit",
        )
    if rollout.free_cache_engine and OmegaConf.select(config, _ROLLOUT + "enable_sleep_mode") is False:
        raise ConfigError(
            _ROLLOUT + "enable_sleep_mode", False, "engines cannot sleep; set free_cache_engine=False too"
        )
    longest_tok = config.data.max_prompt_length + config.data.max_response_length
    if rollout.max_model_len is not None and rollout.max_model_len < longest_tok:
        raise ConfigError(
            _ROLLOUT + "max_model_len",
            rollout.max_model_len,
            f"must be >= {longest_tok} = data.max_prompt_length + data.max_response_length: responses would be cut "
            "short; null = what the model allows",
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
