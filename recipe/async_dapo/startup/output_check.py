"""Folders that a run writes to: one that cannot be written, or has no room, would be found when the first checkpoint,
or line, is written."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf

from ..config import ConfigError
from ..files.disk import LEAST_BYTES, Disk, in_gb
from ..options.values import check_each
from ..plan.model_shape import BYTES_PER_VALUE, load_model
from .model_check import local_folder

_CONTENTS = "actor_rollout_ref.actor.checkpoint.save_contents"


def check_output_folders(config: DictConfig) -> str:
    """Check that each folder can be made, and written to, by this user on this machine, and that its disk has room.

    Returns:
        The room for checkpoints, in words; empty if none are written.

    Raises:
        ConfigError: naming the option, or the environment variable, and what is in the way.
    """
    check_each([partial(_check_folder, *named) for named in _folders(config)])
    return _check_room(config) if config.trainer.save_freq > 0 else ""


def _check_folder(key: str, value: str, folder: str) -> None:
    place = Path(folder).expanduser().absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise ConfigError(key, value, f"{place} is a file, so no folder can be made there; name another one")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(key, value, f"this user may not write to {place}; name another folder, or make it writable")
    if (disk := Disk.of(place)).free_bytes < LEAST_BYTES:
        raise ConfigError(key, value, f"{disk} is full; free some space, or name a folder on another disk")


def _check_room(config: DictConfig) -> str:
    """
    Raises:
        ConfigError: when there is none for the first checkpoint, if each node writes its share.
    """
    trainer = config.trainer
    disk, size = Disk.of(Path(trainer.default_local_dir)), _checkpoint_bytes(config)
    if size is None:
        return f"checkpoints go to {disk}"
    if disk.free_bytes < size / trainer.nnodes:
        raise ConfigError(
            "trainer.default_local_dir",
            trainer.default_local_dir,
            f"a checkpoint takes at least {in_gb(size)}, more than {disk} has room for; free some space, name a folder "
            f"on another disk, or leave optimizer out of {_CONTENTS}",
        )
    keep = trainer.max_actor_ckpt_to_keep
    kept = f"{keep + 1} at a time" if keep else "and all are kept: set trainer.max_actor_ckpt_to_keep"
    return f"checkpoints of {in_gb(size)} or more, {kept}; they go to {disk}"


def _checkpoint_bytes(config: DictConfig) -> float | None:
    """Of the actor's weights and Adam's two moments, whichever are saved; None for a model that is not known."""
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    try:
        shape = load_model(local_folder(model, "path"))
    except ConfigError:
        return None
    wide = str(actor.fsdp_config.model_dtype) in ("fp32", "float32")
    weights = shape.weight_bytes * (4 if wide else 2) / BYTES_PER_VALUE
    saved, has_lora = actor.checkpoint.save_contents, bool(model.lora_rank)
    return weights * (("model" in saved) + 2 * ("optimizer" in saved and not has_lora))


def _folders(config: DictConfig) -> Iterator[tuple[str, str, str]]:
    """What names a folder, its value, the folder."""
    trainer = config.trainer
    keys = ["trainer.rollout_data_dir", "trainer.validation_data_dir", "async_dapo.report_dir"]
    if trainer.save_freq > 0:
        keys.insert(0, "trainer.default_local_dir")
    for key in keys:
        value = OmegaConf.select(config, key)
        if value is not None and "://" not in value:
            yield key, value, value
    loggers = trainer.logger if isinstance(trainer.logger, list | ListConfig) else [trainer.logger]
    # As verl's loggers choose their places, in its order.
    if "tensorboard" in loggers:
        folder = os.environ.get("TENSORBOARD_DIR", f"tensorboard_log/{trainer.project_name}/{trainer.experiment_name}")
        yield "TENSORBOARD_DIR", folder, folder
    if "file" in loggers:
        file = os.environ.get("VERL_FILE_LOGGER_PATH")
        root = os.environ.get("VERL_FILE_LOGGER_ROOT", ".")
        if file is not None:
            yield "VERL_FILE_LOGGER_PATH", file, str(Path(file).parent)
        else:
            yield "VERL_FILE_LOGGER_ROOT", root, str(Path(root) / trainer.project_name)
