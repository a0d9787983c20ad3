"""Advantages, losses, sampling and corrections: what verl would ignore in part, or what no correction could mend."""

from collections.abc import Callable
from functools import partial

from omegaconf import DictConfig

from ..config import AsyncDAPOConfig, ImportanceSampling, needs_bypass_loss
from ..option_values import ConfigError, check_choice, check_each, refused

_CORRECTION = "algorithm.rollout_correction."
_LOSS_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"
_ROLLOUT = "actor_rollout_ref.rollout."

# They need a field that the V1 trainer never computes, and fail after the first rollout.
UNSUPPORTED_ESTIMATORS = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")
KL_LOSSES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "low_var_kl+", "k3+")

# Made of the final reward, which holds the overlong penalty.
PENALISED_METRICS = ("reward", "seq_reward", "seq_final_reward")


def check_algorithm(config: DictConfig, options: AsyncDAPOConfig) -> str:
    """Check the algorithm, and what it needs of the sampling and of the correction for older policy versions.

    Returns:
        Estimator and correction, in words.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    check_each(
        [
            partial(_check_estimator, config),
            partial(_check_losses, config),
            partial(_check_advantages, config, options),
            partial(check_importance_sampling, config, options),
        ]
    )
    return f"{config.algorithm.adv_estimator}, importance sampling {options.importance_sampling}"


def _check_estimator(config: DictConfig) -> None:
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    estimator = config.algorithm.adv_estimator
    is_open = config.actor_rollout_ref.model.external_lib is not None  # it may register others
    if not is_open or estimator in UNSUPPORTED_ESTIMATORS:
        supported = [name for name in ADV_ESTIMATOR_REGISTRY if name not in UNSUPPORTED_ESTIMATORS]
        check_choice("algorithm.adv_estimator", estimator, supported)


def _check_losses(config: DictConfig) -> None:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    actor = config.actor_rollout_ref.actor
    if config.actor_rollout_ref.model.external_lib is None:
        check_choice(_LOSS_MODE, actor.policy_loss.loss_mode, POLICY_LOSS_REGISTRY)
    if actor.loss_agg_mode == "seq-mean-token-sum-norm" and actor.loss_scale_factor is None:
        raise refused(
            config,
            "actor_rollout_ref.actor.loss_scale_factor",
            "with loss_agg_mode=seq-mean-token-sum-norm verl divides by the longest answer of each micro batch, so a "
            "token weighs more where all are short; set it to data.max_response_length, which is "
            f"{config.data.max_response_length}",
        )
    if actor.use_kl_loss:
        check_choice("actor_rollout_ref.actor.kl_loss_type", actor.kl_loss_type, KL_LOSSES)


def _check_advantages(config: DictConfig, options: AsyncDAPOConfig) -> None:
    algorithm = config.algorithm
    if algorithm.use_pf_ppo:
        raise refused(
            config,
            "algorithm.use_pf_ppo",
            "with adv_estimator=gae verl's V1 trainer gives trajectories the advantages of others, and else "
            "ignores it; set it to False",
        )
    if options.filter.metric in PENALISED_METRICS:
        raise refused(
            config,
            "algorithm.filter_groups.metric",
            "the filter judges a raw metric of the reward function, such as acc or score: the final reward holds the "
            "overlong penalty, with which an all-wrong group can pass",
        )
    spans_versions = options.keeps_tokens and (not options.drains or options.max_tokens_per_round is not None)
    may_withhold = bool(options.max_staleness) and spans_versions
    if algorithm.adv_estimator == "opo" and may_withhold:
        raise refused(
            config,
            "algorithm.adv_estimator",
            f"its baseline weighs rewards by lengths, which lose the tokens older than async_dapo.max_staleness="
            f"{options.max_staleness}; set async_dapo.max_staleness=null, or another estimator",
        )
    if algorithm.use_kl_in_reward and may_withhold:
        raise refused(
            config,
            "algorithm.use_kl_in_reward",
            f"tokens older than async_dapo.max_staleness={options.max_staleness} leave the loss, and would leave their "
            "trajectories' KL penalty and their group's baseline with it; set async_dapo.max_staleness=null, or use "
            "actor_rollout_ref.actor.use_kl_loss",
        )


def check_importance_sampling(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Check `async_dapo.importance_sampling` against verl's own options, which would be ignored or contradict it.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    mode, correction = options.importance_sampling, config.algorithm.rollout_correction
    _check_values(correction)
    if mode is ImportanceSampling.BALANCE:
        _check_balance(config, options)
    if mode is ImportanceSampling.BYPASS:
        _check_bypass(config)
        _check_withheld(config, options)
    else:
        _check_proximal(config, mode)
    if correction.loss_type == "reinforce" and correction.rollout_is is None and correction.rollout_rs is None:
        remedy = "loss_type=reinforce has no ratio of its own; set it to token, or rollout_rs to a mask"
        raise refused(config, _CORRECTION + "rollout_is", remedy)
    weighs = mode in (ImportanceSampling.DECOUPLED, ImportanceSampling.BALANCE) or correction.rollout_is is not None
    if weighs and correction.rollout_is_threshold is None:
        raise refused(
            config,
            _CORRECTION + "rollout_is_threshold",
            "verl would leave the weights out; set the truncation, such as 2.0, or async_dapo.importance_sampling=none",
        )


def _check_values(correction: DictConfig) -> None:
    """verl looks at them when it trains for the first time, after a rollout."""
    from verl.trainer.ppo import rollout_corr_helper as verls

    check_choice(_CORRECTION + "loss_type", correction.loss_type, ("ppo_clip", "reinforce"))
    if correction.rollout_is is not None:
        check_choice(_CORRECTION + "rollout_is", correction.rollout_is, ("token", "sequence"))
    if (limit := correction.rollout_is_threshold) is not None:
        _check_threshold(
            "rollout_is_threshold",
            limit,
            lambda: verls._parse_rollout_is_threshold(limit),
            "a number > 0, or lower_upper, such as 0.5_2.0",
        )
    if correction.rollout_rs is not None:
        masks = [*dict.fromkeys(name.strip() for name in str(correction.rollout_rs).split(","))]
        for name in masks:
            check_choice(_CORRECTION + "rollout_rs", name, sorted(verls.SUPPORTED_ROLLOUT_RS_OPTIONS))
        _check_threshold(
            "rollout_rs_threshold",
            correction.rollout_rs_threshold,
            lambda: verls._parse_rollout_rs_thresholds(masks, correction.rollout_rs_threshold),
            "a number > 0 for each mask of rollout_rs, or lower_upper for those that end with k1, such as 0.99_1.01",
        )


def _check_threshold(name: str, value: object, parse: Callable[[], object], wanted: str) -> None:
    try:
        parse()
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(_CORRECTION + name, value, f"verl says: {str(error).rstrip('.')}; set {wanted}") from error


def _check_bypass(config: DictConfig) -> None:
    """PPO's ratio is pi_theta / mu."""
    correction, loss_mode = config.algorithm.rollout_correction, config.actor_rollout_ref.actor.policy_loss.loss_mode
    if correction.rollout_is is not None and correction.loss_type == "ppo_clip":
        raise refused(
            config,
            _CORRECTION + "rollout_is",
            "PPO's ratio is the importance weight in bypass mode, verl ignores this one; leave it null, choose "
            "async_dapo.importance_sampling=decoupled, or set algorithm.rollout_correction.loss_type=reinforce",
        )
    if loss_mode == "gpg":
        raise refused(
            config,
            _LOSS_MODE,
            "has no ratio, which is the correction in bypass mode; use async_dapo.importance_sampling=decoupled",
        )
    if needs_bypass_loss(correction) and loss_mode not in ("vanilla", "bypass_mode"):
        raise refused(
            config,
            _LOSS_MODE,
            "is replaced by verl's bypass loss, which rollout_rs and loss_type=reinforce need; leave it at vanilla",
        )


def _check_withheld(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """verl's bypass loss raises at a micro batch without a token: where all are older than `max_staleness`."""
    limit_tok = options.max_tokens_per_round
    may_be_old = options.max_staleness and limit_tok is not None and limit_tok < options.max_response_length
    if needs_bypass_loss(config.algorithm.rollout_correction) and may_be_old:
        raise refused(
            config,
            "async_dapo.max_tokens_per_round",
            f"a trajectory may be set aside until its group's tokens are older than async_dapo.max_staleness="
            f"{options.max_staleness}, and verl's bypass loss, which rollout_rs and loss_type=reinforce need, ends the "
            "run where no token is left; leave it null, or set async_dapo.max_staleness=null, or "
            "async_dapo.importance_sampling=decoupled",
        )


def _check_balance(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Earlier versions of the weights have to be kept."""
    if options.max_staleness is None:
        raise refused(
            config,
            "async_dapo.max_staleness",
            "async_dapo.importance_sampling=balance keeps the weights of so many versions; set a number, such as 4",
        )
    if config.actor_rollout_ref.actor.strategy != "fsdp2":
        remedy = "async_dapo.importance_sampling=balance exchanges FSDP2's weights; use fsdp2, or decoupled"
        raise refused(config, "actor_rollout_ref.actor.strategy", remedy)


def _check_proximal(config: DictConfig, mode: ImportanceSampling) -> None:
    """PPO's ratio is pi_theta / pi_prox, weighted (decoupled, balance) or not (none)."""
    correction = config.algorithm.rollout_correction
    for name in ("rollout_is", "rollout_rs"):
        if mode is ImportanceSampling.NONE and correction[name] is not None:
            remedy = "contradicts async_dapo.importance_sampling=none; leave it null or choose decoupled"
            raise refused(config, _CORRECTION + name, remedy)
    if correction.bypass_mode:
        raise refused(
            config,
            _CORRECTION + "bypass_mode",
            f"contradicts async_dapo.importance_sampling={mode}; set it to False, or importance_sampling to bypass",
        )
    if correction.loss_type != "ppo_clip":
        remedy = "acts with async_dapo.importance_sampling=bypass only; leave it at ppo_clip"
        raise refused(config, _CORRECTION + "loss_type", remedy)
    if config.actor_rollout_ref.actor.policy_loss.loss_mode == "bypass_mode":
        raise refused(
            config,
            _LOSS_MODE,
            "would take recomputed log-probs for the behaviour policy's; set async_dapo.importance_sampling=bypass, or "
            "leave it at vanilla",
        )
