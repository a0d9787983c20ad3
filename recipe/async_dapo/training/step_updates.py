"""Which rows of a step's batch each of its updates trains on: as verl cuts it, or as an extension does."""

from collections.abc import Sequence

from omegaconf import DictConfig
from transfer_queue import KVBatchMeta

from ..config.extensions import of_copy


class StepUpdates:
    """The updates of a run's steps, as verl makes them: it counts rows, of which a trajectory may have several.

    Args:
        has_critic: a critic is trained, too.
    """

    def __init__(self, config: DictConfig, *, has_critic: bool) -> None:
        self._config = config
        self._n: int = config.actor_rollout_ref.rollout.n
        self._models = [config.actor_rollout_ref.actor, *([config.critic] if has_critic else [])]

    def fit(self, keys: Sequence[str], dp_size: int, *, has_ref: bool) -> int:
        """Size the mini-batches for a step of these rows. Returns the number whose multiple the rows have to be, beside
        what verl asks for.

        Args:
            has_ref: there is a reference policy.
        """
        return 1

    def balance(self, batch: KVBatchMeta, *, ranks: int) -> None:
        """Reorder the rows of a step that has an update. verl has given each rank as much work in the whole step."""

    def rows(self, count: int, *, ranks: int, of_policy: bool) -> list[list[int]]:
        """The rows of each update of a batch of so many rows; of a critic if it has more, unless the policy's are asked
        for. If ranks shuffle, the rows of an update are unknown where there are several: each row then counts as an
        update.
        """
        models = self._models[:1] if of_policy else self._models
        rows = min(model.ppo_mini_batch_size for model in models) * self._n
        if rows < count and any(model.shuffle for model in models):
            return rows_of_updates(count, ranks=1, rows=1)
        return rows_of_updates(count, ranks=ranks, rows=min(rows, count))


def step_updates(config: DictConfig, *, has_critic: bool) -> StepUpdates:
    kind: type[StepUpdates] = of_copy("step_updates") or StepUpdates
    return kind(config, has_critic=has_critic)


def rows_of_updates(count: int, *, ranks: int, rows: int) -> list[list[int]]:
    """Which rows of a batch are in each mini-batch, those of the first rank in front. Every training rank takes an
    equal part of the batch, from the front, and cuts it in that order.

    Args:
        count: rows of the batch.
        rows: of a mini-batch over all ranks.
    """
    own, cell = count // ranks, rows // ranks
    return [
        [rank * own + row for rank in range(ranks) for row in range(first, min(first + cell, own))]
        for first in range(0, own, cell)
    ]
