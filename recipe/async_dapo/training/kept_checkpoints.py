"""Which checkpoints stay on the disk: verl deletes a model as soon as the next one is written, before the rest is."""

import logging
import shutil
from pathlib import Path

from omegaconf import DictConfig

from ..files.checkpoint_folder import COMPLETE_FILE, STEP_FOLDER, DamagedCheckpoint, step_of

logger = logging.getLogger(__name__)


class KeptCheckpoints:
    """Deletes whole checkpoints of this run, once newer ones are complete.

    Args:
        folder: holds all checkpoints.
        keep: how many stay [count]; None: all.
    """

    def __init__(self, folder: Path, keep: int | None) -> None:
        self._folder = folder
        self._keep = keep
        self._saved: list[Path] = []  # oldest first

    @classmethod
    def taking_over_from_verl(cls, config: DictConfig) -> "KeptCheckpoints":
        """Take `trainer.max_actor_ckpt_to_keep` over, and have verl keep one model more, in place. A checkpoint without
        its model or its critic is of no use: all of it goes at once.
        """
        trainer = config.trainer
        keep = trainer.max_actor_ckpt_to_keep or None
        trainer.max_actor_ckpt_to_keep = trainer.max_critic_ckpt_to_keep = None if keep is None else keep + 1
        return cls(Path(trainer.default_local_dir), keep)

    def resumed(self, step: int) -> None:
        """What lies there is of this run, up to the step it resumes from."""
        steps = {found: path for path in self._folder.glob(f"{STEP_FOLDER}*") if (found := _step(path)) is not None}
        self._saved = [path for found, path in sorted(steps.items()) if found <= step]

    def saved(self, folder: Path) -> None:
        """A checkpoint is complete. Those that cannot be deleted yet are tried again after the next."""
        self._saved = [path for path in self._saved if path != folder] + [folder]
        if self._keep is not None:
            surplus, kept = self._saved[: -self._keep], self._saved[-self._keep :]
            self._saved = [path for path in surplus if not _delete(path)] + kept


def _step(path: Path) -> int | None:
    try:
        return step_of(path)
    except DamagedCheckpoint:
        return None


def _delete(folder: Path) -> bool:
    """The note that it is complete goes first."""
    try:
        if folder.exists():
            (folder / COMPLETE_FILE).unlink(missing_ok=True)
            shutil.rmtree(folder)
    except OSError as error:
        logger.warning("old checkpoint %s cannot be deleted yet: %s", folder, error)
        return False
    return True
