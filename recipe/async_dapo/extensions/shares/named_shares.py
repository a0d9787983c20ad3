"""Shares by name: what they are of a batch, and whether batch and data have room for them."""

from collections import Counter
from collections.abc import Collection, Mapping
from fractions import Fraction

from ...config.values import ConfigError
from .mix import apportion

OPTION = "async_dapo.sources"


def whole(weights: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """These weights as parts of 1."""
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def named_shares(asked: Mapping[str | int, float]) -> dict[str, Fraction]:
    """The share of each named source; 1 is the source "1".

    Raises:
        ConfigError: if one is named twice.
    """
    names = Counter(map(str, asked))
    if twice := [name for name, count in names.items() if count > 1]:
        remedy = f"the source {twice[0]!r} is named as a number and as text; leave one of them out"
        raise ConfigError(OPTION, dict(asked), remedy)
    return whole({str(name): Fraction(str(share)) for name, share in asked.items()})


def check_batch(asked: Mapping[str | int, float], batch: int) -> None:
    """
    Args:
        batch: valid groups of a step.

    Raises:
        ConfigError: if a batch has no group of a named source, or one is named twice.
    """
    for name, groups in apportion(batch, named_shares(asked)).items():
        if not groups:
            remedy = f"{name!r} has no group of a batch of {batch}; give it a larger number, or leave it out"
            raise ConfigError(OPTION, dict(asked), remedy)


def check_names(asked: Mapping[str | int, float], there: Collection[str]) -> None:
    """
    Args:
        there: the sources of the data.

    Raises:
        ConfigError: for a name that the data do not have.
    """
    if absent := sorted(named_shares(asked).keys() - set(there)):
        named = ", ".join(map(repr, sorted(there)))
        raise ConfigError(OPTION, dict(asked), f"the data have no source {absent[0]!r}; theirs are {named}")
