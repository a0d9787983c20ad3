"""What trajectories of several rows change in the passes of a step: their advantages, and what their rows weigh."""

from functools import partial
from typing import Any

from transfer_queue import KVBatchMeta
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

from ...training.passes import Compute, Passes
from . import row_advantages, row_weights


class RowPasses(Passes):
    """The passes of steps whose trajectories may have several rows. Where each has one row, a step is verl's own."""

    def loss(self) -> Any:
        loss = super().loss()
        if not row_weights.counts_rows(self._config):
            return loss
        return row_weights.weighted(
            loss or partial(ppo_loss, omega_conf_to_dataclass(self._config.actor_rollout_ref.actor))
        )

    def advantage(self, batch: KVBatchMeta, step: int, metrics: dict[str, Any], compute: Compute) -> KVBatchMeta:
        def corrected(batch: KVBatchMeta) -> KVBatchMeta:
            batch = compute(batch)
            if self._correction.rollout_rs is not None and not self._correction.bypass_mode:
                row_advantages.restore(batch, self._config)
            return batch

        return super().advantage(batch, step, metrics, corrected)

    def update(self, batch: KVBatchMeta, step: int, metrics: dict[str, Any], compute: Compute) -> KVBatchMeta:
        row_weights.weigh_rows(batch, self._config)
        return super().update(batch, step, metrics, compute)
