"""The disk that a folder is on: its room, and errors that mean it had none."""

import errno
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

LEAST_BYTES = 64 * 2**20  # with less, metrics and logs cannot be written for long

# torch's archive writer does not pass the system's error on.
_FULL = re.compile(r"No space left on device|Disk quota exceeded|inline_container\.cc|PytorchStreamWriter failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A file system."""

    mounted_at: Path
    free_bytes: int
    total_bytes: int

    @classmethod
    def of(cls, folder: Path) -> "Disk":
        """That of a folder, which need not exist yet."""
        place = folder.expanduser().absolute()
        while not place.exists():
            place = place.parent
        usage = shutil.disk_usage(place)
        place = place.resolve()
        while not os.path.ismount(place):
            place = place.parent
        return cls(mounted_at=place, free_bytes=usage.free, total_bytes=usage.total)

    def __str__(self) -> str:
        return f"the disk mounted at {self.mounted_at} ({in_gb(self.free_bytes)} of {in_gb(self.total_bytes)} free)"


def in_gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.1f} GB"


def means_full(error: BaseException) -> bool:
    """Whether something could not be written for want of room; the error may come from another process."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or _FULL.search(str(error)) is not None
