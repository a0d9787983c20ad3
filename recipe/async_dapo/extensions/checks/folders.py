"""Folders that a run writes to, but for that of its checkpoints, and classes that hear of its steps: what is wrong with
one would be found when engines are up.
"""

import os
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

from omegaconf import DictConfig, OmegaConf

from ...config.values import ConfigError, check_each
from ...record.run_files import metrics_file
from ...startup.output_check import check_folder
from ...startup.verl_options import listed

_CLASSES = ("async_dapo.recorder", "trainer.checkpoint_callback_class")  # of the user's, which the trainer makes


def check_folders(config: DictConfig) -> None:
    """Check that each folder can be made, and written to, by this user on this machine, and that classes which hear
    of a run's steps and checkpoints are found.

    Raises:
        ConfigError: naming the option, or the environment variable, and what is in the way.
    """
    check_each(
        [
            *(partial(check_folder, *named) for named in _folders(config)),
            *(partial(_check_class, config, key) for key in _CLASSES),
        ]
    )


def _folders(config: DictConfig) -> Iterator[tuple[str, str, str]]:
    """What names a folder, its value, the folder."""
    trainer = config.trainer
    for key in ("trainer.rollout_data_dir", "trainer.validation_data_dir", "async_dapo.report_dir"):
        value = OmegaConf.select(config, key)
        if value is not None and "://" not in value:  # else it is refused
            yield key, value, value
    loggers = listed(trainer.logger)
    # As verl's loggers choose their places, in its order.
    if "tensorboard" in loggers:
        folder = os.environ.get("TENSORBOARD_DIR", f"tensorboard_log/{trainer.project_name}/{trainer.experiment_name}")
        yield "TENSORBOARD_DIR", folder, folder
    if "file" in loggers:
        key = "VERL_FILE_LOGGER_PATH" if "VERL_FILE_LOGGER_PATH" in os.environ else "VERL_FILE_LOGGER_ROOT"
        file = metrics_file(trainer.project_name, trainer.experiment_name)
        yield key, os.environ.get(key, "."), str(file.parent)


def _check_class(config: DictConfig, key: str) -> None:
    name = OmegaConf.select(config, key)
    try:
        is_found = not name or find_spec(str(name).rpartition(".")[0]) is not None
    except (ImportError, ValueError):  # of a package before it; no dot
        is_found = False
    if not is_found:
        remedy = "no such module; name a class that Python finds, package.module.Class, or null"
        raise ConfigError(key, name, remedy)
