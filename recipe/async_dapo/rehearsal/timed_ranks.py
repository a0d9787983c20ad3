"""The trainer's ranks as its process sees them: what they are asked to compute takes its modelled seconds."""

from typing import Any

from transfer_queue import KVBatchMeta

from .. import store
from ..plan.costs import TrainingCost
from .schedule import TrainingSchedule


class TimedRanks:
    """verl's worker group of `EmulatedRank`, whose passes over a batch end when a real one's would."""

    def __init__(self, workers: Any, schedule: TrainingSchedule, cost: TrainingCost) -> None:
        self._workers, self._schedule, self._cost = workers, schedule, cost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workers, name)

    def compute_log_prob(self, batch: KVBatchMeta) -> Any:
        result = self._workers.compute_log_prob(batch)
        self._schedule.spend(self._cost.log_prob_s(*_sums(batch)))
        return result

    def compute_ref_log_prob(self, batch: KVBatchMeta) -> Any:
        result = self._workers.compute_ref_log_prob(batch)
        self._schedule.spend(self._cost.log_prob_s(*_sums(batch)))
        return result

    def update_actor(self, batch: KVBatchMeta) -> Any:
        result = self._workers.update_actor(batch)
        self._schedule.spend(self._cost.train_s(*_sums(batch)))
        return result


def _sums(batch: KVBatchMeta) -> tuple[float, float]:
    """Sum of the sequences' lengths, prompt included, and of their squares [tokens]."""
    lens_tok = [tag["seq_len"] for tag in batch.tags if not store.is_padding(tag)]
    return float(sum(lens_tok)), float(sum(n * n for n in lens_tok))
