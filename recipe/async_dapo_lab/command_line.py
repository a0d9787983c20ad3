"""Paths that the user names on a command line: a leaf with a dozen users."""

import os
from pathlib import Path


def path(text: str) -> Path:
    """Shells leave a `~` behind `--output=` as it is."""
    return Path(os.path.expanduser(text))
