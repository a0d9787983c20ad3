"""Files and modules of the user's, named such that the checks find them where the run's processes will; tools."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from ..config.values import ConfigError
from ..config.verl_keys import PATH_OPTIONS, TOOL_FILES
from ..runtime.containment import contained, first_line


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


def load_tools(config: DictConfig) -> list[Any]:
    """All tools, loaded by verl's own code. A file each, so that the one to blame is known.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    files = {key: value for key in TOOL_FILES if (value := OmegaConf.select(config, key)) is not None}
    if not files:
        return []
    from verl.tools.tool_registry import load_all_tools

    all_tools: list[Any] = []
    for key, value in files.items():
        none = {one.rpartition(".")[2]: None for one in TOOL_FILES}
        try:
            with contained():
                loaded = load_all_tools(**none | {key.rpartition(".")[2]: value})
        except Exception as error:  # the user's module may raise anything
            remedy = f"its tools cannot be loaded: {first_line(error)}; correct the file"
            raise ConfigError(key, value, remedy) from error
        if not loaded:
            raise ConfigError(key, value, "holds no tool; decorate a function with @function_tool")
        if twice := sorted({tool.name for tool in loaded} & {tool.name for tool in all_tools}):
            remedy = f"names tools as {next(iter(files))} does: {', '.join(twice)}; rename one of each two"
            raise ConfigError(key, value, remedy)
        all_tools += loaded
    return all_tools
