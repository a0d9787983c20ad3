"""What looks at rounds and steps beside the pool: a place where extensions plug in (`Declared.observer`)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.pool import PoolWatch
from ..core.staleness import VersionShares
from ..rollout.manager import RoundRecord
from .validation import ValidationAnswers

if TYPE_CHECKING:
    from transfer_queue import KVBatchMeta

    from .engine_manager import EngineManager
    from .run_trainer import RunTrainer


class Observer(PoolWatch):
    """Looks at rounds, at what the pool does with each group, and at the trainer; adds metrics to steps, and may keep a
    state over them. It is one of verl's loggers, too. The base looks at nothing.
    """

    def engines_started(self, engines: "EngineManager") -> None:
        """The engines are up, and have none of the trainer's weights yet."""

    def training_begins(self, trainer: "RunTrainer") -> None:
        """Training begins, or goes on from a checkpoint: before verl makes its loggers."""

    def loggers_made(self, loggers: dict[str, Any]) -> None:
        """verl has made its loggers, by its names of them: others may take their places."""

    def begin_phase(self, name: str | None) -> None:
        """The trainer begins a phase, for example the rollout; None: the phase has ended, and no other has begun."""

    def ended(self, record: RoundRecord) -> None:
        """Groups have ended, and others come back with what they have generated: the pool takes them next, and lets go
        of the tokens of those that start again. Once a step, and once more where a round that goes on is stopped
        between two steps.
        """

    def batch_made(self, step: int, record: RoundRecord, batch: "KVBatchMeta") -> None:
        """A step's batch is chosen, the groups of `record.summary.trained_uids`; the store has their trajectories."""

    def closed(self, record: RoundRecord, versions: VersionShares) -> dict[str, float]:
        """Says what a step's metrics are to have of it, after `batch_made`.

        Args:
            record: of all since the batch before.
            versions: of the batch.

        Returns:
            Metrics that the extension declares, without the prefix.
        """
        return {}

    def validation_closed(self, record: RoundRecord) -> None:
        """A validation's trajectories have ended."""

    def validated(self, answers: ValidationAnswers) -> None:
        """A validation's answers have been scored; its metrics follow."""

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """All metrics of a step, of a validation, or of both."""

    def why_few_valid(self, valid_share: float) -> str | None:
        """Why a step cannot be filled with valid groups, with the remedy; None: that is not known.

        Args:
            valid_share: of the groups of the round [0-1].
        """
        return None

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
