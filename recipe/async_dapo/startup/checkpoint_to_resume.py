"""The checkpoint that a run resumes from: one that is whole, and nothing that a resume would contradict in silence."""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from ..config.checkpoint_options import lasting_options
from ..config.extensions import declared
from ..config.values import ConfigError, check_each, refused
from ..record.checkpoint_folder import (
    ANEW,
    STEP_FOLDER,
    DamagedCheckpoint,
    checkpoint_folders,
    read_complete,
    step_of,
    verify,
)
from ..record.trained_model import TrainedModel, decides

logger = logging.getLogger(__name__)

NEWEST_FILE = "latest_checkpointed_iteration.txt"  # verl's name; holds a step
_SAVED_WITH = f"{{}} was saved with {{}}; set that, or {ANEW}"
_MODEL = "actor_rollout_ref.model.path"


def check_resume(config: DictConfig, *further: Callable[[DictConfig, Path], None]) -> str:
    """Check the checkpoint that verl would resume from. With `resume_mode=auto` the newest complete one takes the place
    of a damaged one: `config` then names it as `resume_from_path`, in place, which the trainer takes.

    Args:
        further: checks of its folder, beside those of what would be wrong in silence.

    Returns:
        The checkpoint that is named, in words; empty if none is.

    Raises:
        ConfigError: naming the path, what is wrong with it, and the remedy.
    """
    trainer, folder = config.trainer, None
    if trainer.resume_mode == "resume_path" and trainer.resume_from_path:  # else a rule refuses it
        folder = _check_named(config)
    elif trainer.resume_mode == "auto":
        folder = _check_newest(config, Path(trainer.default_local_dir).expanduser().absolute())
    if folder is not None:
        own = (_check_model, _check_extensions, _check_lasting, _check_routes)
        check_each(partial(check, config, folder) for check in (*own, *further))
    return f"resumes from {trainer.resume_from_path}" if trainer.resume_from_path else ""


def _check_named(config: DictConfig) -> Path:
    folder = Path(config.trainer.resume_from_path).expanduser().absolute()
    nearest("trainer.resume_from_path", config.trainer.resume_from_path, folder)
    try:
        verify(folder)
    except DamagedCheckpoint as damage:
        remedy = f"{damage}; name a complete checkpoint, or start anew with trainer.resume_mode=disable"
        raise refused(config, "trainer.resume_from_path", remedy) from damage
    OmegaConf.update(config, "trainer.resume_from_path", str(folder))  # verl reads the step at its end: no slash there
    return folder


def _check_newest(config: DictConfig, root: Path) -> Path | None:
    """The checkpoint to resume from: that of the step which verl has noted, or the newest complete one before it, of
    the run that began last; None where nothing was ever saved.
    """
    nearest("trainer.default_local_dir", config.trainer.default_local_dir, root)
    note, folders = root / NEWEST_FILE, checkpoint_folders(root)
    noted = note.read_bytes().strip() if note.exists() else b""
    damage: DamagedCheckpoint | None = None
    if noted.isdigit():
        newest = root / f"{STEP_FOLDER}{int(noted)}"
        folders = [newest, *(folder for folder in folders if step_of(folder) < int(noted))]
    else:
        damage = DamagedCheckpoint(f"{note} holds no step")
    for folder in folders:
        try:
            verify(folder)
        except DamagedCheckpoint as found:
            damage = damage or found
            continue
        if damage is not None:
            logger.warning("trainer.resume_mode=auto: %s; resuming from %s, the newest complete one", damage, folder)
            config.trainer.resume_from_path = str(folder)
        return folder
    if note.exists():
        raise refused(
            config,
            "trainer.default_local_dir",
            f"{damage}, and there is no older complete checkpoint; restore it, name another one "
            "(trainer.resume_mode=resume_path), or start anew with trainer.resume_mode=disable",
        ) from damage
    return None


def nearest(key: str, value: str, place: Path) -> Path:
    """The place, or where there is none, the nearest above it that there is.

    Raises:
        ConfigError: if it is a folder that this user may not enter: what is in it is not known.
    """
    while not os.path.exists(place):  # unlike `Path.exists`, which raises in a folder that is another user's
        place = place.parent
    if place.is_dir() and not os.access(place, os.X_OK):
        raise ConfigError(key, value, f"this user may not enter {place}; name another folder, or let this user in")
    return place


def _check_model(config: DictConfig, folder: Path) -> None:
    """A resume goes on with the checkpoint's weights, and takes all else of the model from its folder, which may have
    been moved. Weights of other shapes would be found when engines are up.
    """
    saved = read_complete(folder).model
    if saved is None:
        return
    now = TrainedModel.of(config)
    for name in saved.differs_in(now):
        other = f"whose config.json has {name}={saved.architecture[name]}, and not {now.architecture[name]}"
        if decides(name):
            remedy = f"{folder} was saved of {saved.path}, {other}; name that model, or {ANEW}"
            raise refused(config, _MODEL, remedy)
        logger.warning(
            "%s=%s: %s was saved of %s, %s: see that both mean the same", _MODEL, now.path, folder, saved.path, other
        )
    if now.path != saved.path:
        logger.warning(
            "%s=%s: %s was saved of %s and goes on with its own weights; tokenizer and reference policy are taken of "
            "the model that is named. Name the former, unless both are the same",
            _MODEL,
            now.path,
            folder,
            saved.path,
        )


def _check_extensions(config: DictConfig, folder: Path) -> None:
    """What an extension keeps in a checkpoint only itself can read."""
    if absent := [name for name in read_complete(folder).extensions if name not in declared()]:
        named = " and ".join(f"extensions/{name}" for name in absent)
        remedy = f"{folder} was saved with {named}, which this copy lacks; copy that folder too, or {ANEW}"
        raise refused(config, "trainer.resume_mode", remedy)


def _check_routes(config: DictConfig, folder: Path) -> None:
    """The rows of a batch have the same fields: with routes of some trajectories only, none could be stored."""
    key, saved = "actor_rollout_ref.rollout.enable_rollout_routing_replay", read_complete(folder).has_routes
    if saved is not bool(OmegaConf.select(config, key)):
        raise refused(config, key, _SAVED_WITH.format(folder, saved))


def _check_lasting(config: DictConfig, folder: Path) -> None:
    """A resume would go on with what the checkpoint holds, and say nothing."""
    from verl.trainer.ppo.utils import need_critic

    now = lasting_options(config)
    for key, saved in read_complete(folder).options.items():
        if key in now and now[key] != saved and (not key.startswith("critic.") or need_critic(config)):
            raise refused(config, key, _SAVED_WITH.format(folder, saved))
