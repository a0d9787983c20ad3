"""Folders that a run writes to: an unwritable one would be found when the first checkpoint, or line, is written."""

import os
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf

from ..config import ConfigError


def check_output_folders(config: DictConfig) -> None:
    """Check that each folder can be made, and written to, by this user on this machine.

    Raises:
        ConfigError: naming the option, or the environment variable, and what is in the way.
    """
    for key, value, folder in _folders(config):
        place = Path(folder).expanduser().absolute()
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise ConfigError(key, value, f"{place} is a file, so no folder can be made there; name another one")
        if not os.access(place, os.W_OK | os.X_OK):
            raise ConfigError(
                key, value, f"this user may not write to {place}; name another folder, or make it writable"
            )


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
