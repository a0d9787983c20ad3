"""The first tokens of the newest weights, for `core/agreement.py` to judge."""

import torch
from transfer_queue import KVBatchMeta

from .. import store
from ..core.agreement import NewestTokens
from .importance_sampling import ratio_sums


def newest_tokens(batch: KVBatchMeta, *, step: int, whole_only: bool) -> NewestTokens:
    """Those of a batch whose log-probs the trainer has computed.

    Args:
        whole_only: leave out those of resumed trajectories, of whose older tokens the engine has kept keys and values.
    """
    data = store.read_padded(batch, ["response_mask", "policy_versions", "old_log_probs", "rollout_log_probs"])
    newest = step - 1
    counts_BT = data["response_mask"].bool() & (data["policy_versions"] >= newest)
    if whole_only:
        counts_BT &= torch.tensor([[tag["min_global_steps"] >= newest] for tag in batch.tags])
    count = int(counts_BT.sum())
    sums = ratio_sums(data["old_log_probs"] - data["rollout_log_probs"], counts_BT)
    return NewestTokens(count, sums["k3"], count - int(sums["tokens"]))
