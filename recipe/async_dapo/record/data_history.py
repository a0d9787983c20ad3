"""The history of the configured data set's prompts, from an earlier run on the same data."""

import hashlib
import os
from pathlib import Path

from omegaconf import DictConfig, ListConfig
from verl.utils.fs import copy_to_local

from ..config.values import ConfigError
from ..core.prompt_history import PassCount
from .history import KEY, load_history


def fingerprint(config: DictConfig) -> str:
    """Of the content of `data.train_files`, wherever they are and whatever they are called."""
    names = config.data.train_files
    hasher = hashlib.blake2b(digest_size=16)
    for name in names if isinstance(names, list | ListConfig) else [names]:
        with open(os.path.expanduser(copy_to_local(name)), "rb") as file:
            hasher.update(hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest())
    return hasher.hexdigest()


def read_history(path: str, config: DictConfig) -> dict[str, PassCount]:
    """What the file says; nothing if it does not exist yet.

    Raises:
        ConfigError: if it is something else, or the history of another data set.
    """
    if not Path(path).expanduser().exists():
        return {}
    history = load_history(path)
    if history.data_set != (expected := fingerprint(config)):
        raise ConfigError(
            KEY,
            path,
            f"is the history of another data set ({history.data_set}; data.train_files have {expected}); name another "
            "file, which is written anew, or train on that data",
        )
    return history.prompts
