"""What looks at each round beside the pool: a place where extensions plug in (`Declared.observer`)."""

from collections.abc import Mapping

from ..core.pool import PoolWatch
from ..core.staleness import VersionShares
from ..core.trajectory import PromptGroup
from ..rollout.reports import RoundRecord


class Observer(PoolWatch):
    """Looks at rounds, and at what the pool does with each group, adds metrics to steps, and may keep a state over
    them. The base looks at nothing.
    """

    def ended(self, record: RoundRecord, groups: Mapping[str, PromptGroup]) -> None:
        """Groups have ended, and others come back with what they have generated: the pool takes them next, and then
        forgets those that have ended, and lets go of the tokens of those that start again. Once a step, and once more
        where a round that goes on is stopped between two steps.

        Args:
            groups: those that the pool has given to the round, by their uids.
        """

    def closed(self, record: RoundRecord, versions: VersionShares) -> dict[str, float]:
        """A step's batch is chosen: the groups of `record.summary.trained_uids`.

        Args:
            record: of all since the batch before.
            versions: of the batch.

        Returns:
            Metrics that the extension declares, without the prefix.
        """
        return {}

    def state(self) -> bytes:
        """What a checkpoint is to keep; empty: nothing. `to_bytes` of `training/checkpoints.py` makes it of
        dataclasses.
        """
        return b""

    def restore(self, state: bytes) -> None:
        """Go on from a checkpoint that keeps a state.

        Raises:
            DamagedCheckpoint: if it is the state of something else.
        """
