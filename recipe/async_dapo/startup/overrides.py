"""The command line: what it says when asked for help, overrides as Hydra reads them, and what is known of the tree of
options that they change, verl's too.
"""

import sys
from argparse import ArgumentError, ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig

from ..config import search_path  # noqa: F401 (registers itself)
from ..config.extensions import of_copy
from ..config.options import CONFIG_FOLDER, CONFIG_NAME
from ..config.values import ConfigError, as_one

USAGE = """\
usage: python -m {module} KEY=VALUE ...

{about} Options are Hydra overrides: verl's, and this recipe's under async_dapo. The least that a run names:

    actor_rollout_ref.model.path=MODEL data.train_files=TRAIN.parquet data.val_files=VAL.parquet

docs/options.md has this recipe's options, docs/your_own.md those of your data, reward, agent loop and tools.
`python -m {package}.check KEY=VALUE ...` says in seconds what is wrong with a run.
--config-dir FOLDER --config-name NAME takes options from a yaml of yours that begins with
`defaults: [async_dapo_trainer, _self_]`. --cfg job prints every option with its value, verl's too: about 1,000 lines.
--hydra-help has Hydra's own flags.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """Overrides, and the yaml that they change."""

    overrides: tuple[str, ...]
    folder: Path = CONFIG_FOLDER
    name: str = CONFIG_NAME
    others: tuple[str, ...] = ()  # flags that have nothing to do with the options of a run

    @property
    def yaml_flags(self) -> tuple[str, ...]:
        """Flags that name the user's yaml, for another command; none for the recipe's own."""
        if (self.folder, self.name) == (CONFIG_FOLDER, CONFIG_NAME):
            return ()
        return f"--config-dir={self.folder}", f"--config-name={self.name}"

    @classmethod
    def of(cls, arguments: Sequence[str]) -> "CommandLine":
        """
        Raises:
            ConfigError: for a flag of Hydra's that names a yaml, without the name.
        """
        parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        parser.add_argument("--config-dir", "-cd", "--config-path", "-cp", dest="folder", default=CONFIG_FOLDER)
        parser.add_argument("--config-name", "-cn", dest="name", default=CONFIG_NAME)
        try:
            known, rest = parser.parse_known_args(list(arguments))
        except ArgumentError as error:
            raise ConfigError(str(error.argument_name), "<missing>", "name a folder, or a yaml in it") from error
        return cls(
            overrides=tuple(one for one in rest if not one.startswith("-")),
            folder=Path(known.folder).expanduser().absolute(),
            name=known.name,
            others=tuple(one for one in rest if one.startswith("-")),
        )


def show_usage(arguments: Sequence[str], *, module: str, about: str) -> None:
    """End the process with usage and the way to the options, if asked for: Hydra would print all options."""
    if not {"-h", "--help"} & set(arguments):
        return
    package = __package__.rpartition(".")[0]
    sys.stdout.write(USAGE.format(module=module, package=package, about=about))
    sys.exit(0)


def compose_what_is_right(line: CommandLine) -> tuple[DictConfig | None, list[ConfigError]]:
    """The configuration, without overrides that Hydra cannot read or apply, and what is wrong with each of those. None
    where the yaml itself cannot be read, or where this copy cannot tell which overrides are right.
    """
    try:
        return composed(line, line.overrides), []
    except (HydraException, ValueError) as error:
        return option_tree().explained(line, error)


@contextmanager
def explained_overrides(arguments: Sequence[str]) -> Iterator[None]:
    """What Hydra raises of a command line becomes an error of ours.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    try:
        yield
    except (HydraException, ValueError) as error:
        _, errors = compose_what_is_right(CommandLine.of(arguments))
        if not errors:
            raise
        raise as_one(errors) from error


def composed(line: CommandLine, overrides: Sequence[str]) -> DictConfig:
    with initialize_config_dir(str(line.folder), version_base=None):
        return compose(line.name, overrides=list(overrides))


class OptionTree:
    """The tree of a copy that knows no more of it than Hydra does. An extension that knows more puts its own in
    (`Declared.option_tree`).

    Attributes:
        has_keys: whether it finds keys that nobody reads.
    """

    has_keys = False

    def without_unread(self, config: DictConfig) -> tuple[DictConfig, list[ConfigError]]:
        """The configuration without keys that nobody reads, and what is wrong with each of those."""
        return config, []

    def check_types(self, config: DictConfig) -> None:
        """Refuse values of a wrong type in options that no table of `verl_options` has.

        Raises:
            ConfigError: naming key, value and remedy.
        """

    def explained(self, line: CommandLine, error: Exception) -> tuple[DictConfig | None, list[ConfigError]]:
        """The configuration without overrides that Hydra cannot read or apply, if it can be had without them, and what
        is wrong with each of those.

        Args:
            error: what Hydra says of the first.
        """
        return None, [ConfigError("overrides", "<refused>", f"Hydra says: {plain(error)}")]


def plain(error: Exception) -> str:
    """What Hydra says, on one line, without its advice."""
    return " ".join(str(error).partition("Config search path:")[0].partition("\nSee https")[0].split())


@cache
def option_tree() -> OptionTree:
    """That of this copy."""
    return (of_copy("option_tree") or OptionTree)()
