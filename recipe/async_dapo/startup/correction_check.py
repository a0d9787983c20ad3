"""Corrections for older policy versions that verl would silently ignore, or that contradict each other."""

from omegaconf import DictConfig

from ..config import AsyncDAPOConfig, ConfigError, ImportanceSampling, needs_bypass_loss

_CORRECTION = "algorithm.rollout_correction."
_LOSS_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"


def check_importance_sampling(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Check `async_dapo.importance_sampling` against verl's own options.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    mode, correction = options.importance_sampling, config.algorithm.rollout_correction
    if mode is ImportanceSampling.BALANCE:
        _check_balance(config, options)
    if mode is ImportanceSampling.BYPASS:
        _check_bypass(correction, config.actor_rollout_ref.actor.policy_loss.loss_mode)
    else:
        _check_proximal(mode, correction, config.actor_rollout_ref.actor.policy_loss.loss_mode)
    if correction.loss_type == "reinforce" and correction.rollout_is is None and correction.rollout_rs is None:
        raise ConfigError(
            _CORRECTION + "rollout_is",
            None,
            "loss_type=reinforce has no ratio of its own; set it to token, or rollout_rs to a mask",
        )
    if correction.rollout_rs is not None and correction.rollout_rs_threshold is None:
        raise ConfigError(_CORRECTION + "rollout_rs_threshold", None, "rollout_rs needs a threshold, such as 0.99_1.01")


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
    if mode is not ImportanceSampling.NONE and correction.rollout_is_threshold is None:
        raise ConfigError(
            _CORRECTION + "rollout_is_threshold",
            None,
            "verl would leave the weights out; set the truncation, such as 2.0, or async_dapo.importance_sampling=none",
        )
    if loss_mode == "bypass_mode":
        raise ConfigError(
            _LOSS_MODE,
            loss_mode,
            "would take recomputed log-probs for the behaviour policy's; set async_dapo.importance_sampling=bypass, or "
            "leave it at vanilla",
        )
