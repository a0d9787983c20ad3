"""Corrections for older policy versions that verl would silently ignore, or that contradict each other."""

from collections.abc import Callable

from omegaconf import DictConfig

from ..config import AsyncDAPOConfig, ConfigError, ImportanceSampling, needs_bypass_loss
from ..options.values import check_choice

_CORRECTION = "algorithm.rollout_correction."
_LOSS_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"


def check_importance_sampling(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Check `async_dapo.importance_sampling` against verl's own options.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    mode, correction = options.importance_sampling, config.algorithm.rollout_correction
    _check_values(correction)
    if mode is ImportanceSampling.BALANCE:
        _check_balance(config, options)
    if mode is ImportanceSampling.BYPASS:
        _check_bypass(correction, config.actor_rollout_ref.actor.policy_loss.loss_mode)
        _check_withheld(correction, options)
    else:
        _check_proximal(mode, correction, config.actor_rollout_ref.actor.policy_loss.loss_mode)
    if correction.loss_type == "reinforce" and correction.rollout_is is None and correction.rollout_rs is None:
        raise ConfigError(
            _CORRECTION + "rollout_is",
            None,
            "loss_type=reinforce has no ratio of its own; set it to token, or rollout_rs to a mask",
        )
    weighs = mode in (ImportanceSampling.DECOUPLED, ImportanceSampling.BALANCE) or correction.rollout_is is not None
    if weighs and correction.rollout_is_threshold is None:
        raise ConfigError(
            _CORRECTION + "rollout_is_threshold",
            None,
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


def _check_bypass(correction: DictConfig, loss_mode: str) -> None:
    """PPO's ratio is pi_theta / mu."""
    if correction.rollout_is is not None and correction.loss_type == "ppo_clip":
        raise ConfigError(
            _CORRECTION + "rollout_is",
            correction.rollout_is,
            "PPO's ratio is the importance weight in bypass mode, verl ignores this one; leave it null, choose "
            "async_dapo.importance_sampling=decoupled, or set algorithm.rollout_correction.loss_type=reinforce",
        )
    if loss_mode == "gpg":
        raise ConfigError(
            _LOSS_MODE,
            loss_mode,
            "has no ratio, which is the correction in bypass mode; use async_dapo.importance_sampling=decoupled",
        )
    if needs_bypass_loss(correction) and loss_mode not in ("vanilla", "bypass_mode"):
        raise ConfigError(
            _LOSS_MODE,
            loss_mode,
            "is replaced by verl's bypass loss, which rollout_rs and loss_type=reinforce need; leave it at vanilla",
        )


def _check_withheld(correction: DictConfig, options: AsyncDAPOConfig) -> None:
    """verl's bypass loss raises at a micro batch without a token: where all are older than `max_staleness`."""
    limit_tok = options.max_tokens_per_round
    if (
        needs_bypass_loss(correction)
        and options.max_staleness
        and limit_tok is not None
        and limit_tok < options.max_response_length
    ):
        raise ConfigError(
            "async_dapo.max_tokens_per_round",
            limit_tok,
            f"a trajectory may be set aside until its group's tokens are older than async_dapo.max_staleness="
            f"{options.max_staleness}, and verl's bypass loss, which rollout_rs and loss_type=reinforce need, ends the "
            "run where no token is left; leave it null, or set async_dapo.max_staleness=null, or "
            "async_dapo.importance_sampling=decoupled",
        )


def _check_balance(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Earlier versions of the weights have to be kept."""
    if options.max_staleness is None:
        raise ConfigError(
            "async_dapo.max_staleness",
            None,
            "async_dapo.importance_sampling=balance keeps the weights of so many versions; set a number, such as 4",
        )
    strategy = config.actor_rollout_ref.actor.strategy
    if strategy != "fsdp2":
        raise ConfigError(
            "actor_rollout_ref.actor.strategy",
            strategy,
            "async_dapo.importance_sampling=balance exchanges FSDP2's weights; use fsdp2, or decoupled",
        )


def _check_proximal(mode: ImportanceSampling, correction: DictConfig, loss_mode: str) -> None:
    """PPO's ratio is pi_theta / pi_prox, weighted (decoupled, balance) or not (none)."""
    if mode is ImportanceSampling.NONE:
        for name in ("rollout_is", "rollout_rs"):
            if correction[name] is not None:
                raise ConfigError(
                    _CORRECTION + name,
                    correction[name],
                    "contradicts async_dapo.importance_sampling=none; leave it null or choose decoupled",
                )
    if correction.bypass_mode:
        raise ConfigError(
            _CORRECTION + "bypass_mode",
            True,
            f"contradicts async_dapo.importance_sampling={mode}; set it to False, or importance_sampling to bypass",
        )
    if correction.loss_type != "ppo_clip":
        raise ConfigError(
            _CORRECTION + "loss_type",
            correction.loss_type,
            "acts with async_dapo.importance_sampling=bypass only; leave it at ppo_clip",
        )
    if loss_mode == "bypass_mode":
        raise ConfigError(
            _LOSS_MODE,
            loss_mode,
            "would take recomputed log-probs for the behaviour policy's; set async_dapo.importance_sampling=bypass, or "
            "leave it at vanilla",
        )
