"""How long responses are: log-normal, or as measured. A standard normal number in, a length in tokens out."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..config import ConfigError

LENGTH_KEYS = ("response_length", "response_len_tok", "length", "num_tokens")
GROUP_KEYS = ("uid", "prompt_uid", "group", "prompt_id")
LENGTHS_KEY = "response_lens_tok"  # a row may hold a whole group


class LengthModel(Protocol):
    """The marginal distribution of response lengths, and how alike the responses to one prompt are."""

    @property
    def correlation(self) -> float:
        """Of the normal scores of two responses to one prompt [0-1]."""

    def of_normal(self, z: np.ndarray) -> np.ndarray:
        """Lengths [tokens] of standard normal scores; not yet cut at the response limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalLengths:
    """exp(N(log(median_tok), sigma^2)); `correlation` is that of the logarithms within a group."""

    median_tok: float
    sigma: float
    correlation: float

    def __post_init__(self) -> None:
        if self.median_tok <= 0:
            raise ConfigError("length_median_tok", self.median_tok, "must be > 0 tokens")
        if self.sigma < 0:
            raise ConfigError("length_sigma", self.sigma, "must be >= 0; 0 = all responses are equally long")
        if not 0 <= self.correlation <= 1:
            raise ConfigError("length_correlation", self.correlation, "must be in 0..1")

    def of_normal(self, z: np.ndarray) -> np.ndarray:
        return self.median_tok * np.exp(self.sigma * z)


@dataclass(frozen=True, slots=True)
class MeasuredLengths:
    """The quantiles of recorded responses."""

    sorted_tok: np.ndarray
    correlation: float

    def of_normal(self, z: np.ndarray) -> np.ndarray:
        share = np.vectorize(_normal_share, otypes=[float])(z)
        return np.quantile(self.sorted_tok, share)


def measured_lengths(rows: Iterable[Mapping[str, Any]], *, path: str, default_correlation: float) -> MeasuredLengths:
    """Measured lengths.

    A row has one response's length under `response_length`, `response_len_tok`, `length` or `num_tokens`, and may name
    its prompt group under `uid`; or it has a whole group's under `response_lens_tok`. With groups, the correlation
    within them is measured too.

    Raises:
        ConfigError: when there is none, or no such column.
    """
    groups: dict[Any, list[float]] = {}
    for number, row in enumerate(rows):
        lengths, uid = _lengths_of(row, path, number)
        groups.setdefault(number if uid is None else uid, []).extend(lengths)
    values = [value for group in groups.values() for value in group]
    if not values:
        raise ConfigError("lengths", path, "the file is empty; record at least one response, or set length_median_tok")
    if not all(math.isfinite(value) and value > 0 for value in values):
        raise ConfigError("lengths", path, "has a length that is not a number > 0; remove such rows")
    sorted_tok = np.sort(np.asarray(values, dtype=float))
    return MeasuredLengths(sorted_tok, correlation_within(list(groups.values()), default=default_correlation))


def correlation_within(groups: Sequence[Sequence[float]], *, default: float) -> float:
    """Intra-class correlation of log lengths (one-way analysis of variance) [0-1]; `default` without groups."""
    logs = [np.log(group) for group in groups if len(group) > 1]
    sizes = np.array([len(group) for group in logs])
    if len(logs) < 2:
        return default
    means = np.array([group.mean() for group in logs])
    grand = np.concatenate(logs).mean()
    between = (sizes * (means - grand) ** 2).sum() / (len(logs) - 1)
    within = sum(((group - mean) ** 2).sum() for group, mean in zip(logs, means, strict=True)) / (sizes - 1).sum()
    size = (sizes.sum() - (sizes**2).sum() / sizes.sum()) / (len(logs) - 1)
    total = between + (size - 1) * within
    return float(np.clip((between - within) / total, 0.0, 1.0)) if total > 0 else 1.0


def _lengths_of(row: Mapping[str, Any], path: str, number: int) -> tuple[list[float], Any]:
    uid = next((row[key] for key in GROUP_KEYS if key in row), None)
    if LENGTHS_KEY in row:
        return [float(value) for value in row[LENGTHS_KEY]], uid
    key = next((key for key in LENGTH_KEYS if key in row), None)
    if key is None:
        raise ConfigError(
            "lengths",
            path,
            f"row {number} has none of the columns {', '.join((*LENGTH_KEYS, LENGTHS_KEY))}; rename its column",
        )
    return [float(row[key])], uid


def _normal_share(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))
