"""Overrides of a training that the lab starts, or reads again."""

from collections.abc import Sequence
from dataclasses import replace

from omegaconf import DictConfig

from ..async_dapo.config.values import as_one
from ..async_dapo.startup.overrides import CommandLine, compose_what_is_right


def before_overrides(arguments: Sequence[str], *given: str) -> list[str]:
    """The arguments with these overrides before the user's, which so go before them. Flags stay in front: Hydra takes
    overrides in one piece only.
    """
    first = next((at for at, one in enumerate(arguments) if "=" in one and not one.startswith("-")), len(arguments))
    return [*arguments[:first], *given, *arguments[first:]]


def compose_overrides(overrides: Sequence[str]) -> DictConfig:
    """The configuration with these overrides, among which `yaml_flags` may be.

    Raises:
        ConfigError: for an override that Hydra cannot read or apply.
    """
    line = CommandLine.of(overrides)
    config, errors = compose_what_is_right(replace(line, overrides=(*line.overrides, *line.others)))
    if config is None or errors:
        raise as_one(errors)
    return config
