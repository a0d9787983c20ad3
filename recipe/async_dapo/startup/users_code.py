"""Files and modules of the user's, named such that the checks find them where the run's processes will."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from ..config.verl_keys import PATH_OPTIONS


def name_files_plainly(config: DictConfig) -> None:
    """Replace `file://` and `~` in names of files, which not all that opens them understands, in place."""
    for key in PATH_OPTIONS:
        value = OmegaConf.select(config, key)
        if (plain := _plain(value)) != value:  # else it may follow another option
            OmegaConf.update(config, key, plain)


def _plain(value: Any) -> Any:
    if isinstance(value, ListConfig):
        return [_plain(item) for item in value]
    return os.path.expanduser(value.removeprefix("file://")) if isinstance(value, str) else value


@contextmanager
def shipped_modules(config: DictConfig) -> Iterator[None]:
    """Modules that Ray will ship to every process of the run can be imported here, too, and in processes that the
    checks start.
    """
    named = OmegaConf.select(config, "ray_kwargs.ray_init.runtime_env.py_modules")
    shipped = [one for one in named if isinstance(one, str)] if isinstance(named, ListConfig) else []
    parents = [str(Path(module).expanduser().absolute().parent) for module in shipped if "://" not in module]
    before = list(sys.path)
    sys.path[:0] = parents
    try:
        yield
    finally:
        sys.path[:] = before
