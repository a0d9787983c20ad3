"""The command line: what it says when asked for help, and overrides as Hydra reads them."""

import re
import sys
from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig

from ..config.options import CONFIG_FOLDER, CONFIG_NAME
from ..config.values import ConfigError

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
            unknown = _UNKNOWN_KEY.match(said)
            raise ConfigError(unknown[1] if unknown else "hydra", "<override>", f"Hydra says: {said}") from error
