"""Values of the planner's inputs: from YAML or a command line's word to their type, and what to show in their place."""

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from ..config import ConfigError


def converted(key: str, value: Any, kind: Any) -> Any:
    """A YAML value or a command-line word as the input's type."""
    if isinstance(kind, UnionType):
        if value is None or value in ("null", "none"):
            return None
        kind = next(option for option in kind.__args__ if option is not NoneType)
    try:
        if get_origin(kind) is list:
            items = value.split(",") if isinstance(value, str) else list(value)
            return [get_args(kind)[0](item) for item in items]
        if kind in (int, float) and not math.isfinite(float(value)):
            raise ValueError
        if kind is int and float(value) != int(float(value)):
            raise ValueError
        return int(float(value)) if kind is int else kind(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(key, value, f"must be {_INPUT_KINDS.get(kind) or _list_of(get_args(kind)[0])}") from None


def _list_of(item: type) -> str:
    if issubclass(item, StrEnum):
        return f"a comma-separated list of {', '.join(item)}"
    return f"a comma-separated list, each {_INPUT_KINDS[item]}"


_INPUT_KINDS = {int: "a whole number", float: "a number", str: "text"}


def unit_of(kind: Any, choices: Sequence[str], about: str) -> str:
    """The choices of an input of this type, or the unit in brackets that its description has, for the help."""
    first = next(option for option in (get_args(kind) or (kind,)) if option is not NoneType)
    if get_origin(kind) is list:
        first = kind
    if get_origin(first) is list:
        item = get_args(first)[0]
        return f"{'|'.join(item)},..." if issubclass(item, StrEnum) else "A,B,..."
    if choices:
        return "|".join(choices)
    if unit := re.search(r"\[([^\]]+)\]", about):
        return re.sub(r"\W+", "-", unit[1]).strip("-").upper()
    return "FILE" if first is str else "NUMBER"
