"""Names of options that were added with `+` or `++`: verl turns some nodes into dataclasses, which refuse others."""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache, partial
from typing import Any

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from ..options.values import ConfigError, check_each, did_you_mean

# Nodes of which verl makes dataclasses, minutes after the start, in workers and servers.
TYPED_NODES = (
    "algorithm",
    "actor_rollout_ref.actor",
    "actor_rollout_ref.model",
    "actor_rollout_ref.rollout",
)


def check_option_names(config: DictConfig) -> None:
    """
    Raises:
        ConfigError: for an option that verl's dataclass of that node does not have.
    """
    nodes = [one for key in TYPED_NODES for one in _typed(OmegaConf.select(config, key), key)]
    check_each([partial(_check_name, name, node, option) for name, node in nodes for option in node])


def _check_name(name: str, node: DictConfig, option: Any) -> None:
    known = _names_of(node._target_)
    if option not in known:
        hint = did_you_mean(option, known) or "; remove it"
        raise ConfigError(f"{name}.{option!s}", node[option], f"verl has no such option{hint}")


@cache
def _names_of(target: str) -> frozenset[str]:
    return frozenset({field.name for field in fields(get_class(target))} | {"_target_"})


def _typed(node: Any, key: str) -> Iterator[tuple[str, DictConfig]]:
    if not isinstance(node, DictConfig):
        return
    if node.get("_target_"):
        yield key, node
    for name in node:
        if not OmegaConf.is_missing(node, name):
            yield from _typed(node._get_node(name), f"{key}.{name!s}")
