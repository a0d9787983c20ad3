"""Combinations of verl options that would be ignored in part, or that fail only after the first rollout."""

from importlib.util import find_spec

import torch
from omegaconf import DictConfig, OmegaConf

from ..actor_limits import MAX_PENDING_CALLS, server_calls
from ..config import AsyncDAPOConfig, Auto, ConfigError
from .batch_sizes import check_batch_sizes, num_gpus
from .correction_check import check_importance_sampling

_ROLLOUT = "actor_rollout_ref.rollout."
_ACTOR = "actor_rollout_ref.actor."

# They need a field that the V1 trainer never computes, and fail after the first rollout.
UNSUPPORTED_ESTIMATORS = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")

# Made of the final reward, which holds the overlong penalty.
PENALISED_METRICS = ("reward", "seq_reward", "seq_final_reward")


def check_combinations(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Check options against each other.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    _check_algorithm(config, options)
    _check_sampling(config)
    _check_reward_model(config)
    _check_overlong_penalty(config)
    _check_waiting(options)
    _check_engines(config, options)
    check_batch_sizes(config, options)
    _check_attention(config)
    _check_validation(config)
    _check_trainer(config)
    _check_storage(config, options)


def _check_algorithm(config: DictConfig, options: AsyncDAPOConfig) -> None:
    algorithm = config.algorithm
    if algorithm.adv_estimator in UNSUPPORTED_ESTIMATORS:
        raise ConfigError(
            "algorithm.adv_estimator", algorithm.adv_estimator, "the V1 trainer lacks what it needs; use grpo"
        )
    if algorithm.use_pf_ppo and algorithm.adv_estimator != "gae":
        raise ConfigError("algorithm.use_pf_ppo", True, "acts with adv_estimator=gae only; set it to False")
    if options.filter.metric in PENALISED_METRICS:
        raise ConfigError(
            "algorithm.filter_groups.metric",
            options.filter.metric,
            "the filter judges a raw metric of the reward function, such as acc or score: the final reward holds the "
            "overlong penalty, with which an all-wrong group can pass",
        )
    spans_versions = options.keeps_tokens and (not options.drains or options.max_tokens_per_round is not None)
    if algorithm.use_kl_in_reward and options.max_staleness and spans_versions:
        raise ConfigError(
            "algorithm.use_kl_in_reward",
            True,
            f"tokens older than async_dapo.max_staleness={options.max_staleness} leave the loss, and would leave their "
            "trajectories' KL penalty and their group's baseline with it; set async_dapo.max_staleness=null, or use "
            "actor_rollout_ref.actor.use_kl_loss",
        )
    check_importance_sampling(config, options)


def _check_sampling(config: DictConfig) -> None:
    """The trainer's probabilities are those of the whole vocabulary: so must the engine's be."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.temperature <= 0:
        raise ConfigError(
            _ROLLOUT + "temperature", rollout.temperature, "must be > 0: all answers of a group would be the same"
        )
    for name, is_whole in (("top_p", rollout.top_p == 1), ("top_k", rollout.top_k in (-1, 0))):
        if not is_whole:
            raise ConfigError(
                _ROLLOUT + name,
                rollout[name],
                "the engine would sample from a part of the vocabulary, and its log-probs could not be compared with "
                f"the trainer's; set {'1.0' if name == 'top_p' else '-1'} (validation has its own in val_kwargs)",
            )


def _check_reward_model(config: DictConfig) -> None:
    reward = config.reward
    model = reward.reward_model
    if model.enable and not model.enable_resource_pool:
        raise ConfigError(
            "reward.reward_model.enable_resource_pool",
            False,
            "a reward model on the trainer's GPUs scores only after the rollout, so groups cannot be judged inline; "
            "set it to True or use a rule-based reward",
        )
    if model.enable and model.rollout.free_cache_engine:
        raise ConfigError(
            "reward.reward_model.rollout.free_cache_engine",
            True,
            "verl would put the reward model's engines to sleep at start-up, and wakes them only for rewards after the "
            "rollout; set it to False",
        )
    if model.enable and reward.custom_reward_function.path is None:
        raise ConfigError(
            "reward.custom_reward_function.path",
            None,
            "verl's agent loops cannot read the score of a reward model alone, which comes without further metrics; "
            "name a reward function that asks the model (its argument reward_router_address) and returns a dict",
        )
    if model.enable_resource_pool and not model.enable:
        raise ConfigError(
            "reward.reward_model.enable_resource_pool",
            True,
            "would reserve GPUs for nothing: reward.reward_model.enable=False; set both or neither",
        )
    if reward.num_workers < 1:
        raise ConfigError("reward.num_workers", reward.num_workers, "must be >= 1: they compute the rewards")


def _check_overlong_penalty(config: DictConfig) -> None:
    reward = config.reward
    overlong = reward.reward_kwargs.overlong_buffer_cfg
    if not overlong.enable:
        return
    prefix = "reward.reward_kwargs."
    manager = reward.reward_manager
    if manager.source == "register" and manager.name != "dapo":
        raise ConfigError(
            prefix + "overlong_buffer_cfg.enable",
            True,
            f"is ignored by reward.reward_manager.name={manager.name}; use dapo, or disable it",
        )
    max_resp_len, max_response_length = reward.reward_kwargs.max_resp_len, config.data.max_response_length
    if max_resp_len != max_response_length:
        raise ConfigError(
            prefix + "max_resp_len",
            max_resp_len,
            f"must equal data.max_response_length={max_response_length}, where responses end",
        )
    if not 1 <= overlong.len <= max_resp_len:
        raise ConfigError(
            prefix + "overlong_buffer_cfg.len",
            overlong.len,
            f"must be in 1..{max_resp_len}; set overlong_buffer_cfg.enable=False to disable",
        )
    if overlong.penalty_factor <= 0:
        raise ConfigError(prefix + "overlong_buffer_cfg.penalty_factor", overlong.penalty_factor, "must be > 0")


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


def _check_validation(config: DictConfig) -> None:
    trainer = config.trainer
    if trainer.val_only and not trainer.val_before_train:
        raise ConfigError("trainer.val_only", True, "is ignored without trainer.val_before_train=True")
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    if sampling.n < 1:
        raise ConfigError(_ROLLOUT + "val_kwargs.n", sampling.n, "must be >= 1")
    if sampling.temperature == 0 and (sampling.n > 1 or sampling.do_sample):
        raise ConfigError(
            _ROLLOUT + "val_kwargs.temperature",
            sampling.temperature,
            f"gives the same answer {sampling.n} times, do_sample={sampling.do_sample} is ignored; set a temperature "
            "> 0, or n=1 and do_sample=False",
        )
    if sampling.temperature > 0 and not sampling.do_sample:
        raise ConfigError(
            _ROLLOUT + "val_kwargs.do_sample",
            False,
            f"verl ignores it, and val_kwargs.temperature={sampling.temperature} samples; set temperature=0 for greedy "
            "answers, or do_sample=True",
        )


def _check_trainer(config: DictConfig) -> None:
    from verl.trainer.ppo.utils import need_critic

    trainer, actor = config.trainer, config.actor_rollout_ref.actor
    if trainer.critic_warmup > 0 and not need_critic(config):
        raise ConfigError(
            "trainer.critic_warmup", trainer.critic_warmup, "there is no critic, and the actor would not train; set 0"
        )
    if trainer.default_hdfs_dir is not None:
        raise ConfigError(
            "trainer.default_hdfs_dir",
            trainer.default_hdfs_dir,
            "verl copies the model there, but neither prompts nor buffer, and never resumes from it; set null, and "
            "trainer.default_local_dir to a shared folder",
        )
    if trainer.resume_mode == "resume_path" and not trainer.resume_from_path:
        raise ConfigError("trainer.resume_from_path", None, "set it to a checkpoint folder, or resume_mode=auto")
    if actor.checkpoint.async_save:
        raise ConfigError(
            _ACTOR + "checkpoint.async_save",
            True,
            "nobody would know when a checkpoint is complete, and the one before can go; set False",
        )


def _check_storage(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Trained and carried trajectories are stored; TransferQueue ends the run where they have no room."""
    backend = config.transfer_queue.backend
    limit = backend.SimpleStorage.total_storage_size
    held = options.over_sampling().batch_unit
    needed = (options.target_valid_groups + held) * options.rollout_n
    if backend.storage_backend == "SimpleStorage" and limit is not None and limit < needed:
        raise ConfigError(
            "transfer_queue.backend.SimpleStorage.total_storage_size",
            limit,
            f"must be >= {needed} trajectories: of data.train_batch_size and {held} groups that may be carried over",
        )
