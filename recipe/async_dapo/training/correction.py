"""Cross-stage importance sampling: our one option becomes the several of verl's that make it act in the V1 trainer."""

from omegaconf import DictConfig, OmegaConf, open_dict

from ..config import ConfigError, ImportanceSampling


def importance_sampling_mode(config: DictConfig) -> ImportanceSampling:
    """`async_dapo.importance_sampling`, or what verl's own options say where it is null."""
    mode = config.async_dapo.importance_sampling
    if mode is None:
        bypasses = config.algorithm.rollout_correction.bypass_mode
        return ImportanceSampling.BYPASS if bypasses else ImportanceSampling.DECOUPLED
    return ImportanceSampling(mode)


def wire_importance_sampling(config: DictConfig) -> None:
    """Set verl's options for `async_dapo.importance_sampling`, in place.

    bypass     old_log_probs = rollout_log_probs: PPO's ratio is pi_theta / mu (CoPRIS, arXiv:2511.05589, eq. 8).
    decoupled  old_log_probs are those of the newest weights; the loss is weighted by the truncated pi_prox / mu.
    none       old_log_probs are those of the newest weights, uncorrected.

    In bypass mode verl reads rejection masks from the loss's own options, and only with its own loss: they are copied
    there.
    """
    mode = importance_sampling_mode(config)
    correction = config.algorithm.rollout_correction
    correction.bypass_mode = mode is ImportanceSampling.BYPASS
    if mode is ImportanceSampling.DECOUPLED:
        correction.rollout_is = correction.rollout_is or "token"
    if correction.bypass_mode and _needs_bypass_loss(correction):
        policy_loss = config.actor_rollout_ref.actor.policy_loss
        with open_dict(policy_loss):
            policy_loss.loss_mode = "bypass_mode"
            policy_loss.rollout_correction = OmegaConf.create(OmegaConf.to_container(correction))


def _needs_bypass_loss(correction: DictConfig) -> bool:
    return correction.rollout_rs is not None or correction.loss_type != "ppo_clip"


def check_importance_sampling(config: DictConfig) -> None:
    """Refuse combinations that verl would silently ignore.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    mode = importance_sampling_mode(config)
    correction = config.algorithm.rollout_correction
    if mode is ImportanceSampling.NONE:
        for name in ("rollout_is", "rollout_rs"):
            if correction[name] is not None:
                raise ConfigError(
                    f"algorithm.rollout_correction.{name}",
                    correction[name],
                    "contradicts async_dapo.importance_sampling=none; leave it null or choose decoupled",
                )
    is_bypass = mode is ImportanceSampling.BYPASS
    if correction.bypass_mode and not is_bypass:
        raise ConfigError(
            "algorithm.rollout_correction.bypass_mode",
            True,
            f"contradicts async_dapo.importance_sampling={mode}; set it to False, or importance_sampling to bypass",
        )
    if correction.loss_type != "ppo_clip" and not is_bypass:
        raise ConfigError(
            "algorithm.rollout_correction.loss_type",
            correction.loss_type,
            "acts with async_dapo.importance_sampling=bypass only; leave it at ppo_clip",
        )
    if is_bypass and correction.rollout_is is not None and correction.loss_type == "ppo_clip":
        raise ConfigError(
            "algorithm.rollout_correction.rollout_is",
            correction.rollout_is,
            "PPO's ratio is the importance weight in bypass mode, verl ignores this one; leave it null, choose "
            "async_dapo.importance_sampling=decoupled, or set algorithm.rollout_correction.loss_type=reinforce",
        )
    if correction.loss_type == "reinforce" and correction.rollout_is is None and correction.rollout_rs is None:
        raise ConfigError(
            "algorithm.rollout_correction.rollout_is",
            None,
            "loss_type=reinforce has no ratio of its own; set it to token, or rollout_rs to a mask",
        )
    if mode is ImportanceSampling.DECOUPLED and correction.rollout_is_threshold is None:
        raise ConfigError(
            "algorithm.rollout_correction.rollout_is_threshold",
            None,
            "verl would leave the weights out; set the truncation, such as 2.0, or async_dapo.importance_sampling=none",
        )
    loss_mode = config.actor_rollout_ref.actor.policy_loss.loss_mode
    if is_bypass and loss_mode == "gpg":
        raise ConfigError(
            "actor_rollout_ref.actor.policy_loss.loss_mode",
            loss_mode,
            "has no ratio, which is the correction in bypass mode; use async_dapo.importance_sampling=decoupled",
        )
    if is_bypass and _needs_bypass_loss(correction) and loss_mode not in ("vanilla", "bypass_mode"):
        raise ConfigError(
            "actor_rollout_ref.actor.policy_loss.loss_mode",
            loss_mode,
            "is replaced by verl's bypass loss, which rollout_rs and loss_type=reinforce need; leave it at vanilla",
        )
    if correction.rollout_rs is not None and correction.rollout_rs_threshold is None:
        raise ConfigError(
            "algorithm.rollout_correction.rollout_rs_threshold", None, "rollout_rs needs a threshold, such as 0.99_1.01"
        )
