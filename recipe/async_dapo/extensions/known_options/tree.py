"""The tree of options: its keys, and the types of what no table of the core has."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from ...config.extensions import of_copy
from ...config.values import ConfigError, check_each, typed
from ...config.verl_keys import VLLM
from ...startup.overrides import CommandLine, OptionTree
from ...startup.verl_options import TYPES
from .keys import engine_of, options_of, unread_keys, verls_own, without

Explained = tuple[DictConfig | None, list[ConfigError]]


class KnownOptions(OptionTree):
    """The tree of verl's options and the recipe's, as far as code reads them."""

    has_keys = True

    def without_unread(self, config: DictConfig) -> tuple[DictConfig, list[ConfigError]]:
        unread = unread_keys(config)
        return without(config, unread) if unread else config, [one.error(config) for one in unread]

    def check_types(self, config: DictConfig) -> None:
        check_each(partial(_check_kind, *one) for one in _others(config))

    def explained(self, line: CommandLine, error: Exception) -> Explained:
        explain: Callable[[CommandLine], Explained] | None = of_copy("explained")
        return super().explained(line, error) if explain is None else explain(line)


def _others(config: DictConfig) -> Iterator[tuple[str, Any, Any]]:
    """Options of verl's that are in no table, with their values and verl's own, and what verl hands on to torch, vLLM
    and their like. What the user's code reads may be what the user likes.
    """
    own = verls_own(engine_of(config))
    handed_on = (VLLM, *(f"{key}." for key in own))
    for key, value in options_of(config):
        if key not in own and key.startswith(handed_on):
            yield key, value, None
        elif key in own and key not in TYPES and not key.startswith("async_dapo."):
            if isinstance(own[key], bool) and isinstance(value, str) and "${" in value:
                value = OmegaConf.select(config, key, throw_on_resolution_failure=False)
            yield key, value, own[key]


def _check_kind(key: str, value: Any, own: Any) -> None:
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError(key, value, "must be a number; set one, or leave it out")
    if any(isinstance(one, float) and not math.isfinite(one) for one in _items(value)):
        raise ConfigError(key, value, "must hold finite numbers; set them, or leave it out")
    if isinstance(own, bool) and isinstance(value, str):
        typed(bool | None, value, key)


def _items(value: Any) -> Iterator[Any]:
    """What is in a list or dict, and in those that it holds."""
    if isinstance(value, list | ListConfig | dict | DictConfig):
        for one in value.values() if isinstance(value, dict | DictConfig) else value:
            yield one
            yield from _items(one)
