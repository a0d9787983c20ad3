"""Advantages, losses and sampling: what verl would ignore in part, or what the loss could not be corrected for."""

from functools import partial

from omegaconf import DictConfig

from ..config import AsyncDAPOConfig, ConfigError
from ..options.values import check_each
from .correction_check import check_importance_sampling

_ROLLOUT = "actor_rollout_ref.rollout."

# They need a field that the V1 trainer never computes, and fail after the first rollout.
UNSUPPORTED_ESTIMATORS = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")

# Made of the final reward, which holds the overlong penalty.
PENALISED_METRICS = ("reward", "seq_reward", "seq_final_reward")


def check_algorithm(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Check the algorithm and what it needs of the sampling.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    check_each(
        [
            partial(_check_advantages, config, options),
            partial(_check_sampling, config),
            partial(check_importance_sampling, config, options),
        ]
    )


def _check_advantages(config: DictConfig, options: AsyncDAPOConfig) -> None:
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
