"""A file that another process writes to, line by line."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class GrowingFile:
    """Gives each line once, when it is complete."""

    path: Path
    _read_bytes: int = 0

    def new_lines(self) -> list[bytes]:
        """Those that have been completed since the last call; none while there is no file."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as stream:
            stream.seek(self._read_bytes)
            complete, newline, _ = stream.read().rpartition(b"\n")
        self._read_bytes += len(complete) + len(newline)
        return complete.splitlines()
