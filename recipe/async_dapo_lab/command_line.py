"""What commands of the lab have in common: paths that the user names, and what they need of the recipe."""

import os
import sys
from pathlib import Path

from ..async_dapo.config.extensions import declared, not_in_copy


def path(text: str) -> Path:
    """Shells leave a `~` behind `--output=` as it is."""
    return Path(os.path.expanduser(text))


def end_without(*extensions: str, otherwise: str) -> None:
    """End the process where this copy of the recipe lacks one of these.

    Args:
        otherwise: what the user can do instead of copying it.
    """
    for name in extensions:
        if name not in declared():
            sys.exit(f"async_dapo: {not_in_copy(name, otherwise)}")
