"""Overrides on the command line, as Hydra reads them: a typo in a key is explained before anything is built."""

import re
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from ..config import CONFIG_FOLDER, CONFIG_NAME, ConfigError
from ..verl_version import check_versions

USAGE = """\
usage: python -m {module} KEY=VALUE ...

{about} Options are Hydra overrides: verl's, and this recipe's under async_dapo. The least that a run names:

    actor_rollout_ref.model.path=MODEL data.train_files=TRAIN.parquet data.val_files=VAL.parquet

docs/options.md has this recipe's options, docs/your_own.md those of your data, reward, agent loop and tools.
`python -m {package}.check KEY=VALUE ...` says in seconds what is wrong with a run.
--cfg job prints every option with its value, verl's too: about 1,000 lines. --hydra-help has Hydra's own flags.
"""

_UNKNOWN_KEY = re.compile(r"Could not override '(.+?)'")


def show_usage(arguments: Sequence[str], *, module: str, about: str) -> None:
    """End the process with usage and the way to the options, if asked for: Hydra would print all options."""
    if not {"-h", "--help"} & set(arguments):
        return
    package = __package__.rpartition(".")[0]
    sys.stdout.write(USAGE.format(module=module, package=package, about=about))
    sys.exit(0)


def compose_overrides(overrides: Sequence[str], base: Sequence[str] = ()) -> DictConfig:
    """The configuration with these overrides.

    Args:
        base: overrides before them, for options that the recipe's yaml does not have.

    Raises:
        ConfigError: for an override that Hydra cannot read or apply.
    """
    with initialize_config_dir(str(CONFIG_FOLDER), version_base=None):
        try:
            return compose(CONFIG_NAME, overrides=[*base, *overrides])
        except HydraException as error:
            raise _explained(error, overrides, base) from error


def check_before_hydra(arguments: Sequence[str], base: Sequence[str] = ()) -> None:
    """What is looked at before Hydra runs: the versions first, as verl's own configuration is read next. Then
    compose once, for Hydra's errors; not with flags of Hydra's, which may change all of it.

    Raises:
        ConfigError: for a version that the recipe does not know, and an override that Hydra cannot read or apply.
    """
    check_versions()
    if not any(argument.startswith("-") for argument in arguments):
        compose_overrides(arguments, base)


def _explained(error: HydraException, overrides: Sequence[str], base: Sequence[str]) -> ConfigError:
    if not (match := _UNKNOWN_KEY.search(str(error))):
        said = " ".join(str(error).partition("Config search path:")[0].split())
        return ConfigError("hydra", "compose", f"Hydra refuses these overrides: {said}")
    key = match[1]
    value = next((text.partition("=")[2] for text in overrides if text.startswith(f"{key}=")), "<unset>")
    known = list(_keys(compose(CONFIG_NAME, overrides=list(base))))
    same_name = [other for other in known if other.rpartition(".")[2] == key.rpartition(".")[2]]
    alike = get_close_matches(key, same_name, n=1, cutoff=0) or get_close_matches(key, known, n=1)
    hint = f"did you mean {alike[0]}?" if alike else "see docs/options.md"
    return ConfigError(key, value, f"no such option; {hint} (+{key}=... would add it)")


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Full keys of all options, of nodes as well as of leaves."""
    for name in node:
        key = f"{prefix}{name}"
        yield key
        if OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name):
            continue
        if isinstance(child := node._get_node(name), DictConfig) and not child._is_none():
            yield from _keys(child, f"{key}.")
