"""The command line: what it says when asked for help, and overrides as Hydra reads them."""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from ..config.options import CONFIG_FOLDER, CONFIG_NAME
from ..config.values import ConfigError, did_you_mean

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
            said = " ".join(str(error).partition("Config search path:")[0].split())
            if not (unknown := _UNKNOWN_KEY.match(said)):
                raise ConfigError("hydra", "compose", f"Hydra says: {said}") from error
            value = dict(text.partition("=")[::2] for text in overrides).get(unknown[1], "<unset>")
            known = list(_keys(compose(CONFIG_NAME, overrides=list(base))))
            begun = [key for key in known if key.endswith(f".{unknown[1]}")]  # all but its first names are right
            hint = did_you_mean(begun[0] if begun else unknown[1], known) or "; docs/options.md has the recipe's"
            raise ConfigError(unknown[1], value, f"no such option{hint}") from error


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Full keys of all options, of nodes as well as of leaves."""
    for name in node:
        yield prefix + name
        if OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name):
            continue
        if isinstance(child := node._get_node(name), DictConfig) and not child._is_none():
            yield from _keys(child, f"{prefix}{name}.")
