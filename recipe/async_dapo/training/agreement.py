"""The first tokens of the newest weights, for `core/agreement.py` to judge."""

import math

import torch
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.utils.config import omega_conf_to_dataclass

from .. import store
from ..config.options import model_setup
from ..core.agreement import ModelSetup, judge
from .importance_sampling import ratio_statistics, ratio_sums


def judge_engines(batch: KVBatchMeta, config: DictConfig, *, step: int, keeps_kv: bool) -> str | None:
    """Judge engines by a batch whose log-probs the trainer has computed.

    Args:
        keeps_kv: a resumed trajectory has keys and values of older weights, so its newest tokens do not count.

    Returns:
        What there is to warn of, maybe nothing; None if the batch has no token that counts.

    Raises:
        LogProbsDisagree: they do not sample from the trainer's policy.
    """
    data = store.read_padded(batch, ["response_mask", "policy_versions", "old_log_probs", "rollout_log_probs"])
    newest = step - 1
    counts_BT = data["response_mask"].bool() & (data["policy_versions"] >= newest)
    if keeps_kv:
        counts_BT &= torch.tensor([[tag["min_global_steps"] >= newest] for tag in batch.tags])
    if not counts_BT.any():
        return None
    # Of no finite log-prob there are no statistics.
    found = ratio_statistics(ratio_sums(data["old_log_probs"] - data["rollout_log_probs"], counts_BT))
    return judge(found.get("k3_kl", math.inf), tokens=int(counts_BT.sum()), setup=lambda: _setup_of(config))


def _setup_of(config: DictConfig) -> ModelSetup:
    return model_setup(config, omega_conf_to_dataclass(config.actor_rollout_ref.model))
