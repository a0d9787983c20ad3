"""Cross-stage importance sampling: our one option becomes the several of verl's that make it act in the V1 trainer."""

from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

from ..config import ImportanceSampling, needs_bypass_loss


def wire_importance_sampling(config: DictConfig, mode: ImportanceSampling) -> None:
    """Set verl's options for `async_dapo.importance_sampling`, in place.

    bypass     old_log_probs = rollout_log_probs: PPO's ratio is pi_theta / mu (CoPRIS, arXiv:2511.05589, eq. 8).
    decoupled  old_log_probs are those of the newest weights; the loss is weighted by the truncated pi_prox / mu.
    balance    the same; then the trainer puts weights with the mixture of a group's versions in their place.
    none       old_log_probs are those of the newest weights, uncorrected.

    In bypass mode verl reads rejection masks from the loss's own options, and only with its own loss: they are copied
    there.
    """
    correction = config.algorithm.rollout_correction
    correction.bypass_mode = mode is ImportanceSampling.BYPASS
    if mode in (ImportanceSampling.DECOUPLED, ImportanceSampling.BALANCE):
        correction.rollout_is = correction.rollout_is or "token"
    if correction.bypass_mode and needs_bypass_loss(correction):
        policy_loss = config.actor_rollout_ref.actor.policy_loss
        with open_dict(policy_loss):
            policy_loss.loss_mode = "bypass_mode"
            policy_loss.rollout_correction = OmegaConf.create(OmegaConf.to_container(correction))


def truncated_weights(log_ratio_BT: Tensor, mask_BT: Tensor, correction: DictConfig) -> tuple[Tensor, dict[str, float]]:
    """verl's weights and their metrics for ratios of our own, by token or sequence, truncated as configured.

    Args:
        log_ratio_BT: [B, T] log pi_prox less the log-prob of what sampled the token, nats.
        mask_BT: [B, T] tokens in the loss.
        correction: `algorithm.rollout_correction`.
    """
    weights_BT, metrics = compute_rollout_correction_weights(
        log_ratio=log_ratio_BT,
        response_mask=mask_BT,
        rollout_is=correction.rollout_is,
        rollout_is_threshold=correction.rollout_is_threshold,
        rollout_is_batch_normalize=correction.rollout_is_batch_normalize,
    )
    return weights_BT, {f"rollout_corr/{name}": float(value) for name, value in metrics.items()}
