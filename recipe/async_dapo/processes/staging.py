"""A folder of a driver's, gone after it however it ends: the next driver removes what one that was killed has left.

A driver locks its folder, and the system opens the lock when the driver ends. Process ids would not tell who lives:
containers that share a folder for temporary files count their own.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "async_dapo_staging_"


@contextmanager
def staging_folder(parent: Path) -> Iterator[Path]:
    _remove_stale(parent)
    unlocked = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))
    lock = _lock(unlocked)
    folder = unlocked.rename(unlocked.with_name(unlocked.name.removeprefix(".")))  # others see it from here on
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _remove_stale(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        if (lock := _lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """Returns a descriptor that holds the lock; None where somebody else does, or the file system has no locks."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # another user's, or gone by now
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
