"""The file of prompts' histories: readable, of this data set, and in a folder that can be written to."""

import os
from pathlib import Path

from omegaconf import DictConfig

from ..config import AsyncDAPOConfig, ConfigError
from ..files.data_history import read_history
from ..files.history_file import KEY


def check_history(config: DictConfig, options: AsyncDAPOConfig) -> str | None:
    """
    Returns:
        How many prompts it knows; None without a file.

    Raises:
        ConfigError: naming the file, what is wrong with it, and the remedy.
    """
    path = options.selection.history_file
    if path is None:
        return None
    file = Path(path).expanduser()
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise ConfigError(KEY, path, "must be a file in a folder that exists and can be written to")
    return f"{len(read_history(path, config))} prompts known"
