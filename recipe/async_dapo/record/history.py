"""The file of prompts' histories: JSON, plain data. A run writes it, the next run and the planner read it."""

from pathlib import Path
from typing import Annotated

import msgspec

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


def load_history(path: str, *, key: str = KEY) -> HistoryFile:
    """
    Args:
        key: the option that names the file.

    Raises:
        ConfigError: if it is missing, too long, or something else.
    """
    file = Path(path).expanduser()
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        return msgspec.json.decode(file.read_bytes(), type=HistoryFile)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            key,
            path,
            f"is not what this recipe wrote ({error}); delete it, or name a file that a run has written as {KEY}",
        ) from error


def write_history(path: str, prompts: dict[str, PassCount], data_set: str) -> None:
    """In place of the one before, which stays until this one is on the disk."""
    with replacing(Path(path).expanduser()) as file:
        file.write(msgspec.json.encode(HistoryFile(format=FORMAT, data_set=data_set, prompts=prompts)))
