"""The command line: what it says when asked for help, overrides as Hydra reads them, and what is wrong with those that
it refuses, in words of ours: Hydra's own advice for a key that it does not have is a `+`, with which nothing reads it.
"""

import sys
from argparse import ArgumentError, ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig

from ..config.options import CONFIG_FOLDER, CONFIG_NAME
from ..config.values import ConfigError, ConfigErrors
from . import keys

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


def before_overrides(arguments: Sequence[str], *given: str) -> list[str]:
    """The arguments with these overrides before the user's, which so go before them. Flags stay in front: Hydra takes
    overrides in one piece only.
    """
    first = next((at for at, one in enumerate(arguments) if "=" in one and not one.startswith("-")), len(arguments))
    return [*arguments[:first], *given, *arguments[first:]]


def show_usage(arguments: Sequence[str], *, module: str, about: str) -> None:
    """End the process with usage and the way to the options, if asked for: Hydra would print all options."""
    if not {"-h", "--help"} & set(arguments):
        return
    package = __package__.rpartition(".")[0]
    sys.stdout.write(USAGE.format(module=module, package=package, about=about))
    sys.exit(0)


def compose_overrides(overrides: Sequence[str], base: Sequence[str] = ()) -> DictConfig:
    """The configuration with these overrides, among which `yaml_flags` may be.

    Args:
        base: overrides before them, for options that the recipe's yaml does not have.

    Raises:
        ConfigError: for an override that Hydra cannot read or apply.
    """
    line = CommandLine.of([*base, *overrides])
    config, errors = compose_what_is_right(replace(line, overrides=(*line.overrides, *line.others)))
    if config is None or errors:
        raise errors[0] if len(errors) == 1 else ConfigErrors(errors)
    return config


def compose_what_is_right(line: CommandLine) -> tuple[DictConfig | None, list[ConfigError]]:
    """The configuration, without overrides that Hydra cannot read or apply, and what is wrong with each of those. None
    where the yaml itself cannot be read.
    """
    try:
        return _compose(line, line.overrides), []
    except (HydraException, ValueError):
        return _compose_each(line)


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
        raise (errors[0] if len(errors) == 1 else ConfigErrors(errors)) from error


def _compose(line: CommandLine, overrides: Sequence[str]) -> DictConfig:
    with initialize_config_dir(str(line.folder), version_base=None):
        return compose(line.name, overrides=list(overrides))


def _compose_each(line: CommandLine) -> tuple[DictConfig | None, list[ConfigError]]:
    """Those that choose a yaml first, as Hydra does."""
    errors: list[ConfigError] = []
    chosen: list[str] = []
    options: list[Override] = []
    for text in line.overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException as error:
            errors.append(_unreadable(text, error))
            continue
        if override.is_sweep_override():
            remedy = "a run has one value; write a list as [a,b], and a text with a comma as '\"a,b\"'"
            errors.append(ConfigError(override.key_or_group, text.partition("=")[2], remedy))
        elif "." in override.key_or_group and not override.key_or_group.startswith("hydra."):
            options.append(override)
        else:
            try:
                _compose(line, [*chosen, text])
                chosen.append(text)
            except (HydraException, ValueError) as error:
                errors.append(_refused(override, text, error, keys.ENGINES[0]))
    try:
        config = _compose(line, chosen)
    except HydraException as error:
        return None, [*errors, ConfigError("--config-name", line.name, f"Hydra says: {_plain(error)}")]
    for override in options:
        try:
            ConfigLoaderImpl._apply_overrides_to_config([override], config)
        except (HydraException, ValueError) as error:
            errors.append(_refused(override, str(override.input_line), error, keys.engine_of(config)))
    return config, errors


def _unreadable(text: str, error: HydraException) -> ConfigError:
    key, equals, value = text.partition("=")
    if not equals:
        return ConfigError(text, "<missing>", "give it a value: KEY=VALUE")
    if key != key.strip() or value != value.lstrip():
        remedy = "leave out the blanks around ="
    elif "<" in value and ">" in value:
        remedy = f"put a value of yours in place of {value[value.find('<') : value.rfind('>') + 1]}"
    elif "~" in value:
        remedy = f"write $HOME in place of ~, or quote it twice: '{key}=\"{value}\"'"
    else:
        remedy = f"Hydra cannot read the value ({_plain(error)}); quote it twice: '{key}=\"{value}\"'"
    return ConfigError(key.strip(" +~") or "<no key>", value, remedy)


def _refused(override: Override, text: str, error: Exception, engine: str) -> ConfigError:
    key, value = override.key_or_group, text.partition("=")[2]
    said = _plain(error)
    if said.startswith("Could not append"):
        remedy = "the option exists; leave out the +"
    elif not said.startswith(("Could not override", "Could not delete from config. '")):
        remedy = f"Hydra says: {said}"
    elif not keys.find(keys.known_keys(engine), key):
        remedy = keys.unread(key, engine)
    elif followed := keys.followed(key, engine):
        remedy = f"follows {followed}; set that"
    elif override.is_delete():
        remedy = "is not set; leave it out"
    else:
        remedy = f"verl reads it, but its yaml does not have it; write +{text}"
    return ConfigError(key, value or "<none>", remedy)


def _plain(error: Exception) -> str:
    return " ".join(str(error).partition("Config search path:")[0].partition("\nSee https")[0].split())
