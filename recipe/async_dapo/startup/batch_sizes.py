"""Mini and micro batches that verl would pad without a word, or that fail at the first long trajectory."""

import math

from omegaconf import DictConfig, OmegaConf

from ..config import AsyncDAPOConfig, ConfigError

_ROLLOUT = "actor_rollout_ref.rollout."
_ACTOR = "actor_rollout_ref.actor."


def check_batch_sizes(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Check mini and micro batches against B, n and the GPUs.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    _check_mini_batch(config, options)
    _check_micro_batches(config, options)


def _check_mini_batch(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """verl fills a batch up with padding rows to a common multiple of ranks and mini batch, without a word."""
    actor = config.actor_rollout_ref.actor
    prompts = actor.ppo_mini_batch_size
    if prompts < 1 or options.target_valid_groups % prompts:
        raise ConfigError(
            _ACTOR + "ppo_mini_batch_size",
            prompts,
            f"must divide data.train_batch_size={options.target_valid_groups}: verl would fill the last mini batch up "
            "with padding",
        )
    ranks = _num_ranks(config)
    if prompts * options.rollout_n % ranks:
        raise ConfigError(
            _ACTOR + "ppo_mini_batch_size",
            prompts,
            f"times rollout.n={options.rollout_n} trajectories must be a multiple of the {ranks} data-parallel ranks; "
            f"set a multiple of {ranks // math.gcd(ranks, options.rollout_n)}",
        )


def _check_micro_batches(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """A micro batch must hold the longest trajectory (dynamic), or divide what a rank gets (fixed)."""
    actor = config.actor_rollout_ref.actor
    if actor.use_dynamic_bsz:
        longest_tok = config.data.max_prompt_length + config.data.max_response_length
        parallel = _sequence_parallel(config)
        for key in (_ACTOR + "ppo_max_token_len_per_gpu", _ROLLOUT + "log_prob_max_token_len_per_gpu"):
            value = OmegaConf.select(config, key)
            if value * parallel < longest_tok:
                raise ConfigError(
                    key,
                    value,
                    f"must be >= {-(-longest_tok // parallel)}: a trajectory can have {longest_tok} tokens, over "
                    f"{parallel} sequence-parallel ranks; training would fail at the first long one",
                )
        return
    ranks = _num_ranks(config)
    per_rank = {
        _ACTOR + "ppo_micro_batch_size_per_gpu": actor.ppo_mini_batch_size * options.rollout_n // ranks,
        _ROLLOUT + "log_prob_micro_batch_size_per_gpu": options.target_valid_groups * options.rollout_n // ranks,
    }
    for key, rows in per_rank.items():
        value = OmegaConf.select(config, key)
        if value is None or value < 1 or rows % value:
            raise ConfigError(
                key,
                value,
                f"must divide the {rows} trajectories that a rank gets; or set "
                "actor_rollout_ref.actor.use_dynamic_bsz=True",
            )


def num_gpus(config: DictConfig) -> int:
    return config.trainer.n_gpus_per_node * config.trainer.nnodes


def _sequence_parallel(config: DictConfig) -> int:
    sizes = (_ACTOR + "ulysses_sequence_parallel_size", _ACTOR + "fsdp_config.ulysses_sequence_parallel_size")
    return max(OmegaConf.select(config, key) or 1 for key in sizes)


def _num_ranks(config: DictConfig) -> int:
    """Data-parallel ranks of FSDP; 1 for other strategies, which divide the GPUs in other ways."""
    if config.actor_rollout_ref.actor.strategy not in ("fsdp", "fsdp2"):
        return 1
    return max(1, num_gpus(config) // _sequence_parallel(config))
