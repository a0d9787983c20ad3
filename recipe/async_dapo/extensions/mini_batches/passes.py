"""What trajectories of several rows change in the passes of a step: their advantages, and what their rows weigh."""

from typing import Any

from transfer_queue import KVBatchMeta

from ...training.passes import Compute, Passes
from . import row_advantages, row_weights


class RowPasses(Passes):
    """The passes of steps whose trajectories may have several rows. Where each has one row, a step is verl's own."""

    def loss(self) -> Any:
        loss = super().loss()
        return row_weights.weighted(loss or self._verls_loss) if row_weights.counts_rows(self._config) else loss

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
