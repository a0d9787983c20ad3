"""The file of prompts' histories: JSON, plain data. A run writes it, the next run on the same data reads it."""

import hashlib
import os
from pathlib import Path
from typing import Annotated

import msgspec
from omegaconf import DictConfig, ListConfig
from verl.utils.fs import copy_to_local

from ..config.values import ConfigError
from ..core.prompt_history import PassCount
from .checkpoint_folder import replacing

FORMAT = 1
KEY = "async_dapo.selection.history_file"
MAX_BYTES = 2**31


class HistoryFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of the file."""

    format: Annotated[int, msgspec.Meta(ge=FORMAT, le=FORMAT)]
    data_set: str  # fingerprint
    prompts: dict[str, PassCount]


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


def load_history(path: str) -> HistoryFile:
    """
    Raises:
        ConfigError: if it is missing, too long, or something else.
    """
    file = Path(path).expanduser()
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        return msgspec.json.decode(file.read_bytes(), type=HistoryFile)
    except (OSError, ValueError, RecursionError) as error:
        remedy = f"is not what this recipe wrote ({error}); delete it, or name a file that a run has written as {KEY}"
        raise ConfigError(KEY, path, remedy) from error


def write_history(path: str, prompts: dict[str, PassCount], data_set: str) -> None:
    """In place of the one before, which stays until this one is on the disk."""
    with replacing(Path(path).expanduser()) as file:
        file.write(msgspec.json.encode(HistoryFile(format=FORMAT, data_set=data_set, prompts=prompts)))
