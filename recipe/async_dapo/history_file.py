"""A file with the history of a data set's prompts, for the next run on the same data: JSON, plain data."""

import hashlib
import os
from pathlib import Path
from typing import Annotated

import msgspec
from omegaconf import DictConfig, ListConfig
from verl.utils.fs import copy_to_local

from .config import ConfigError
from .core.prompt_history import PassCount

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
    file = Path(path).expanduser()
    if not file.exists():
        return {}
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        history = msgspec.json.decode(file.read_bytes(), type=HistoryFile)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(KEY, path, f"is not what this recipe wrote ({error}); delete it, or name another") from error
    if history.data_set != (expected := fingerprint(config)):
        raise ConfigError(
            KEY,
            path,
            f"is the history of another data set ({history.data_set}; data.train_files have {expected}); name another "
            "file, which is written anew, or train on that data",
        )
    return history.prompts


def write_history(path: str, prompts: dict[str, PassCount], data_set: str) -> None:
    """In place of the one before, which stays until this one is on the disk."""
    file = Path(path).expanduser()
    partial = file.with_name(file.name + ".part")
    with open(partial, "wb") as out:
        out.write(msgspec.json.encode(HistoryFile(format=FORMAT, data_set=data_set, prompts=prompts)))
        out.flush()
        os.fsync(out.fileno())
    partial.replace(file)
