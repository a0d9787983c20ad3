"""Folders that a run writes to, URLs that would be taken for paths, and classes that hear of its steps: what is wrong
with one would be found when engines are up, or when the first checkpoint is due.
"""

import os
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from ...config.values import ConfigError, check_each
from ...config.verl_keys import CODE_OPTIONS, DATA_OPTIONS, PATH_OPTIONS, PLACE_OPTIONS
from ...record.run_files import metrics_file
from ...startup.checkpoint_to_resume import nearest
from ...startup.verl_options import listed

_CLASSES = ("async_dapo.recorder", "trainer.checkpoint_callback_class")  # of the user's, which the trainer makes


def check_folders(config: DictConfig) -> None:
    """Check that no path is a URL, that each folder can be made, and written to, by this user on this machine, and that
    classes which hear of a run's steps and checkpoints are found.

    Raises:
        ConfigError: naming the option, or the environment variable, and what is in the way.
    """
    check_each(
        [
            *(partial(_refuse_url, config, key) for key in PATH_OPTIONS),
            *(partial(_check_folder, *named) for named in _folders(config)),
            *(partial(_check_class, config, key) for key in _CLASSES),
        ]
    )


def _folders(config: DictConfig) -> Iterator[tuple[str, str, str]]:
    """What names a folder, its value, the folder."""
    trainer = config.trainer
    saved = ("trainer.default_local_dir",) if trainer.save_freq > 0 else ()
    for key in (*saved, "trainer.rollout_data_dir", "trainer.validation_data_dir", "async_dapo.report_dir"):
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


def _refuse_url(config: DictConfig, key: str) -> None:
    """Python takes a URL for a relative path, and makes a folder `./s3:`. verl copies what it reads from `hdfs://`, and
    `datasets` opens URLs of data.
    """
    read = {PLACE_OPTIONS: ("hdfs",), CODE_OPTIONS: ("pkg",)}
    schemes = next((known for options, known in read.items() if key in options), ())
    for value in [] if key in DATA_OPTIONS else listed(OmegaConf.select(config, key)):
        scheme, is_url, _ = str(value).partition("://")
        if is_url and scheme not in schemes:
            known = f", or one that verl copies ({schemes[0]}://)" if schemes == ("hdfs",) else ""
            remedy = f"is a URL, and would be taken for a path of this machine; name a path, such as of a mount{known}"
            raise ConfigError(key, value, remedy)


def _check_folder(key: str, value: str, folder: str) -> None:
    """Check that a folder can be made, and written to, by this user on this machine.

    Args:
        key: what names the folder: an option, or an environment variable.
    """
    place = nearest(key, value, Path(folder).expanduser().absolute())
    if not place.is_dir():
        raise ConfigError(key, value, f"{place} is a file, so no folder can be made there; name another one")
    if not os.access(place, os.W_OK):
        raise ConfigError(key, value, f"this user may not write to {place}; name another folder, or make it writable")


def _check_class(config: DictConfig, key: str) -> None:
    name = OmegaConf.select(config, key)
    try:
        is_found = not name or find_spec(str(name).rpartition(".")[0]) is not None
    except (ImportError, ValueError):  # of a package before it; no dot
        is_found = False
    if not is_found:
        remedy = "no such module; name a class that Python finds, package.module.Class, or null"
        raise ConfigError(key, name, remedy)
