"""Which checkpoint a run resumes from, and whether it is complete: known before a cluster starts."""

import logging
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from ..config import ConfigError
from ..files.checkpoint_folder import STEP_FOLDER, DamagedCheckpoint, step_of, verify

logger = logging.getLogger(__name__)

NEWEST_FILE = "latest_checkpointed_iteration.txt"  # verl's name; holds a step
MAX_NEWEST_BYTES = 32


def check_resume(config: DictConfig) -> None:
    """Check the checkpoint that verl would resume from. With `resume_mode=auto` the newest complete one takes the place
    of a damaged one: `config` then names it as `resume_from_path`, in place, which the trainer takes.

    Raises:
        ConfigError: naming the path, what is wrong with it, and the remedy.
    """
    trainer = config.trainer
    if trainer.resume_mode == "resume_path":
        _check_named(config)
    elif trainer.resume_mode == "auto":
        _check_newest(config, Path(trainer.default_local_dir).expanduser().absolute())


def how_to_go_on(config: DictConfig) -> str:
    """For a run that was interrupted: from where, and by what command."""
    trainer = config.trainer
    root = Path(trainer.default_local_dir).expanduser().absolute()
    newest = _first_complete(_folders(root))
    if newest is None:
        often = "" if trainer.save_freq > 0 else f" (trainer.save_freq={trainer.save_freq})"
        return f"{root} holds no complete checkpoint{often}: the same command begins at step 1"
    option = "" if trainer.resume_mode == "auto" else " with trainer.resume_mode=auto"
    return f"the same command{option} goes on from {newest}"


def _check_named(config: DictConfig) -> None:
    folder = Path(config.trainer.resume_from_path).expanduser().absolute()
    try:
        verify(folder)
    except DamagedCheckpoint as damage:
        raise ConfigError(
            "trainer.resume_from_path",
            config.trainer.resume_from_path,
            f"{damage}; name a complete checkpoint, or start anew with trainer.resume_mode=disable",
        ) from damage
    OmegaConf.update(config, "trainer.resume_from_path", str(folder))  # verl reads the step at its end: no slash there


def _check_newest(config: DictConfig, root: Path) -> None:
    older = _folders(root)
    try:
        if (step := _newest_step(root)) is None:
            if not _first_complete(older):
                return  # nothing was ever saved here
            raise DamagedCheckpoint(f"{root / NEWEST_FILE} is missing")
        older = [folder for folder in older if step_of(folder) < step]
        verify(root / f"{STEP_FOLDER}{step}")
    except DamagedCheckpoint as damage:
        folder = _first_complete(older)
        if folder is None:
            raise ConfigError(
                "trainer.default_local_dir",
                config.trainer.default_local_dir,
                f"{damage}, and there is no older complete checkpoint; restore it, name another one "
                "(trainer.resume_mode=resume_path), or start anew with trainer.resume_mode=disable",
            ) from damage
        logger.warning("trainer.resume_mode=auto: %s; resuming from %s, the newest complete one", damage, folder)
        config.trainer.resume_from_path = str(folder)


def _newest_step(root: Path) -> int | None:
    """The step that verl has noted as the newest; None where it has not."""
    path = root / NEWEST_FILE
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_NEWEST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error
    if len(text) == MAX_NEWEST_BYTES or not text.strip().isdigit():
        raise DamagedCheckpoint(f"{path} holds {text!r} instead of a step")
    return int(text)


def _folders(root: Path) -> list[Path]:
    """Checkpoint folders, the newest first."""
    found = []
    for folder in root.glob(f"{STEP_FOLDER}*"):
        try:
            found.append((step_of(folder), folder))
        except DamagedCheckpoint:
            continue  # not a checkpoint's name
    return [folder for _, folder in sorted(found, reverse=True)]


def _first_complete(folders: list[Path]) -> Path | None:
    for folder in folders:
        try:
            verify(folder)
        except DamagedCheckpoint:
            continue
        return folder
    return None
