"""Mini and micro batches that verl would pad without a word, or that fail at the first long trajectory."""

import math
from collections.abc import Callable
from functools import partial

from omegaconf import DictConfig, OmegaConf

from ..config import AsyncDAPOConfig, ConfigError
from ..options.values import check_each

_ROLLOUT = "actor_rollout_ref.rollout."
_ACTOR = "actor_rollout_ref.actor."
_REF = "actor_rollout_ref.ref."
_CRITIC = "critic."


def check_batch_sizes(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Check mini and micro batches of every model against B, n and the GPUs.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.workers.config import CriticConfig

    batch, dynamic = options.target_valid_groups * options.rollout_n, _ACTOR + "use_dynamic_bsz"
    micro, of_actor = partial(_check_micro_batches, config), {"model": _ACTOR, "dynamic": dynamic}

    def training() -> None:
        micro(_ACTOR + "ppo_", **of_actor, trajectories=_check_mini_batch(config, options, _ACTOR))

    checks: list[Callable[[], object]] = [
        training,
        partial(micro, _ROLLOUT + "log_prob_", **of_actor, trajectories=batch),
    ]
    if need_reference_policy(config):
        dynamic = _REF + "log_prob_use_dynamic_bsz"
        checks.append(partial(micro, _REF + "log_prob_", model=_REF, dynamic=dynamic, trajectories=batch))
    if need_critic(config):  # its micro batches are always dynamic, and those of its training as large as the others
        key, most_tok = _CRITIC + "ppo_infer_max_token_len_per_gpu", CriticConfig.ppo_infer_max_token_len_per_gpu
        checks.append(partial(_check_mini_batch, config, options, _CRITIC))
        checks.append(partial(_check_longest, config, key, model=_CRITIC, default=most_tok))
    check_each(checks)


def _check_mini_batch(config: DictConfig, options: AsyncDAPOConfig, model: str) -> int:
    """verl fills a batch up with padding rows to a common multiple of ranks and mini batches, without a word.

    Returns the trajectories of a mini batch.
    """
    key = model + "ppo_mini_batch_size"
    prompts = OmegaConf.select(config, key)
    if prompts < 1 or options.target_valid_groups % prompts:
        raise ConfigError(
            key,
            prompts,
            f"must divide data.train_batch_size={options.target_valid_groups}: verl would fill the last mini batch up "
            "with padding",
        )
    ranks = _num_ranks(config, model)
    if prompts * options.rollout_n % ranks:
        raise ConfigError(
            key,
            prompts,
            f"times rollout.n={options.rollout_n} trajectories must be a multiple of the {ranks} data-parallel ranks; "
            f"set a multiple of {ranks // math.gcd(ranks, options.rollout_n)}",
        )
    return prompts * options.rollout_n


def _check_micro_batches(config: DictConfig, sizes: str, *, model: str, dynamic: str, trajectories: int) -> None:
    """A micro batch must hold the longest trajectory (dynamic), or divide what a rank gets (fixed).

    Args:
        sizes: what the names of the options begin with.
        dynamic: the option that says which of them holds.
        trajectories: of all ranks.
    """
    if OmegaConf.select(config, dynamic):
        _check_longest(config, sizes + "max_token_len_per_gpu", model=model)
        return
    key, per_rank = sizes + "micro_batch_size_per_gpu", trajectories // _num_ranks(config, model)
    value = OmegaConf.select(config, key)
    if value is None or value < 1 or per_rank % value:
        raise ConfigError(
            key, value, f"must divide the {per_rank} trajectories that a rank gets; or set {dynamic}=True"
        )


def _check_longest(config: DictConfig, key: str, *, model: str, default: int = 0) -> None:
    """
    Args:
        default: what verl takes for an option that is not there.
    """
    value = OmegaConf.select(config, key, default=default)
    longest_tok = config.data.max_prompt_length + config.data.max_response_length
    parallel = _sequence_parallel(config, model)
    if value is None or value * parallel < longest_tok:
        raise ConfigError(
            key,
            value,
            f"must be >= {-(-longest_tok // parallel)}: a trajectory can have {longest_tok} tokens, over "
            f"{parallel} sequence-parallel ranks; training would fail at the first long one",
        )


def num_gpus(config: DictConfig) -> int:
    return config.trainer.n_gpus_per_node * config.trainer.nnodes


def _sequence_parallel(config: DictConfig, model: str) -> int:
    name = "ulysses_sequence_parallel_size"
    keys = (model + name, f"{model}fsdp_config.{name}", f"{model}fsdp.{name}")
    return max(OmegaConf.select(config, key) or 1 for key in keys)


def _num_ranks(config: DictConfig, model: str) -> int:
    """Data-parallel ranks of FSDP; 1 for other strategies, which divide the GPUs in other ways."""
    if OmegaConf.select(config, model + "strategy") not in ("fsdp", "fsdp2"):
        return 1
    return max(1, num_gpus(config) // _sequence_parallel(config, model))
