"""The first tokens of the newest weights, for `verdict.py` to judge."""

import logging
from typing import Any

import torch
from transfer_queue import KVBatchMeta

from ... import store
from ...training.importance_sampling import ratio_sums
from ...training.passes import Compute, Passes
from .verdict import NewestTokens, judge

logger = logging.getLogger(__name__)


class JudgedPasses(Passes):
    """The passes of a run whose engines are judged by the first tokens of the newest weights. Until they are, a pass
    comes before every update, whatever corrects, and whatever other extensions do in its place.
    """

    comes_first = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._newest = NewestTokens()  # of this life, until engines are judged
        self._has_judged_engines = False

    def log_probs(self, batch: KVBatchMeta, step: int, compute: Compute, *, has_one_update: bool) -> KVBatchMeta:
        if self._has_judged_engines:
            return super().log_probs(batch, step, compute, has_one_update=has_one_update)
        with self._bypassing(False):
            batch = compute(batch)
        self._newest += newest_tokens(batch, step=step, whole_only=self._options.has_old_kv)
        warning = judge(self._newest)
        self._has_judged_engines = warning is not None
        if warning:
            logger.warning("step %d: %s", step, warning)
        return compute(batch) if self._correction.bypass_mode else batch


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
