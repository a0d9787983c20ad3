"""How long responses are: log-normal, or as measured. A standard normal number in, a length in tokens out."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any, Protocol

import numpy as np

from ...async_dapo.config.values import ConfigError

_LENGTH_KEY, _GROUP_KEY = "response_length", "uid"
_LENGTHS_KEY = "response_lens_tok"  # a row may hold a whole group

MEAN, LONGEST, CUT = "response_length/mean", "response_length/max", "response_length/clip_ratio"
PROMPT, TOKENS = "prompt_length/mean", "perf/total_num_tokens"
FITTED = (MEAN, LONGEST, CUT, PROMPT, TOKENS)  # what a log-normal is fitted to
_NORMAL = NormalDist()
_HALVINGS = 60
_CUT_SHARE = 0.01  # of responses that end at the very same longest length: a limit has cut them


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

    def of_normal(self, z: np.ndarray) -> np.ndarray:
        return self.median_tok * np.exp(self.sigma * z)


@dataclass(frozen=True, slots=True)
class _MeasuredLengths:
    """The quantiles of recorded responses."""

    sorted_tok: np.ndarray
    correlation: float

    def of_normal(self, z: np.ndarray) -> np.ndarray:
        share = np.vectorize(_normal_share, otypes=[float])(z)
        return np.quantile(self.sorted_tok, share)


def _measured_lengths(rows: Iterable[Mapping[str, Any]], *, path: str, default_correlation: float) -> _MeasuredLengths:
    """Measured lengths.

    A row has one response's length under `response_length`, and may name its prompt group under `uid`; or it has a
    whole group's under `response_lens_tok`. With groups, the correlation within them is measured too.

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
    return _MeasuredLengths(sorted_tok, correlation_within(list(groups.values()), default=default_correlation))


def cut_below(lengths: LengthModel, limit_tok: int) -> str:
    """Says that measured lengths were cut at a lower limit than this one; empty where they were not."""
    if not isinstance(lengths, _MeasuredLengths):
        return ""
    longest_tok, count = lengths.sorted_tok[-1], len(lengths.sorted_tok)
    at_end = count - int(np.searchsorted(lengths.sorted_tok, longest_tok))
    if longest_tok >= limit_tok or at_end < max(2, _CUT_SHARE * count):
        return ""
    return (
        f"The lengths were cut at {longest_tok:.0f} tokens ({at_end / count:.0%} of the responses), the limit asked "
        f"about is {limit_tok}: longer responses are missing, so steps come out too short. Measure at that limit."
    )


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
    uid = row.get(_GROUP_KEY)
    if _LENGTHS_KEY not in row and _LENGTH_KEY not in row:
        raise ConfigError("lengths", path, f"row {number} has neither {_LENGTH_KEY} nor {_LENGTHS_KEY}; rename its key")
    key, what = (_LENGTHS_KEY, "a list of numbers") if _LENGTHS_KEY in row else (_LENGTH_KEY, "a number")
    if isinstance(uid, list | dict):
        raise ConfigError("lengths", path, f"row {number} has {_GROUP_KEY}={uid}; it must be a text or a number")
    try:
        return [float(value) for value in (row[key] if key == _LENGTHS_KEY else [row[key]])], uid
    except (TypeError, ValueError, OverflowError):
        raise ConfigError("lengths", path, f"row {number} has {key}={row[key]}; it must be {what}") from None


def _normal_share(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def fit_lengths(steps: Sequence[Mapping[str, float]], *, path: str, correlation: float) -> LogNormalLengths:
    """A log-normal fitted to the metrics of an earlier run, as verl's `file` logger writes them: no length is in there.

    They have a step's mean and its longest response: of N log-normal ones the longest is at a known normal score, and
    of two unknowns the mean tells the other. Where the limit cuts the longest ones, the share that is cut takes the
    place of the longest.

    Args:
        steps: metrics.
        correlation: within a group, which no metric tells [0-1].

    Raises:
        ConfigError: where no step has the metrics, or they fit no log-normal.
    """
    trained = [step for step in steps if all(_is_number(step.get(key)) for key in FITTED) and step[MEAN] > 0]
    if not trained:
        raise ConfigError("lengths", path, f"no step has {', '.join(FITTED)}; give measured lengths")
    median_tok, sigma = _fit(trained, path)
    return LogNormalLengths(median_tok=median_tok, sigma=sigma, correlation=correlation)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _fit(steps: Sequence[Mapping[str, float]], path: str) -> tuple[float, float]:
    """Median [tokens] and sigma."""
    mean_tok = fmean(step[MEAN] for step in steps)
    longest = [step[LONGEST] for step in steps]
    count = fmean(step[TOKENS] / (step[MEAN] + step[PROMPT]) for step in steps)
    cut_share = fmean(step[CUT] for step in steps)
    is_cut = longest.count(max(longest)) > len(steps) / 2 and cut_share * count > 1.5  # the limit, time and again
    at_tok = fmean(longest)
    beyond = cut_share if is_cut else 0.625 / (count + 0.25)  # Blom's score of the largest
    if not 0 < beyond < 0.5 or not 0 < mean_tok <= at_tok:
        raise ConfigError("lengths", path, f"{100 * beyond:.0f} % of the responses are cut; give measured lengths")
    score = _NORMAL.inv_cdf(1 - beyond)
    low, high = 0.0, score  # the mean falls from `at_tok` on, as far as this
    for _ in range(_HALVINGS):
        sigma = (low + high) / 2
        if _mean_tok(at_tok, score, sigma, is_cut=is_cut) > mean_tok:
            low = sigma
        else:
            high = sigma
    return at_tok * exp(-score * sigma), sigma


def _mean_tok(at_tok: float, score: float, sigma: float, *, is_cut: bool) -> float:
    """Of a log-normal that has `at_tok` at this normal score; cut there."""
    mean = at_tok * exp(-score * sigma + sigma**2 / 2)
    return mean * _NORMAL.cdf(score - sigma) + at_tok * (1 - _NORMAL.cdf(score)) if is_cut else mean


def load_lengths(path: str, *, default_correlation: float) -> LengthModel:
    """Lengths that a JSONL file holds, or a log-normal that fits a run's `metrics.jsonl`.

    Args:
        default_correlation: within a group, where the file does not tell [0-1].

    Raises:
        ConfigError: when the file is missing, cannot be read, or tells no lengths.
    """
    values = read_jsonl(Path(path), key="lengths", wanted="a JSONL file, or set length_median_tok")
    rows = [value if isinstance(value, dict) else {_LENGTH_KEY: value} for value in values]
    if steps := [row["data"] for row in rows if isinstance(row.get("data"), Mapping)]:
        return fit_lengths(steps, path=path, correlation=default_correlation)
    return _measured_lengths(rows, path=path, default_correlation=default_correlation)


def read_jsonl(path: Path, *, key: str, wanted: str) -> list[Any]:
    """The values of a file with one a line.

    Args:
        key: of the input that names the file.
        wanted: what to give in its place, if it cannot be read.

    Raises:
        ConfigError: when the file is missing, or is something else.
    """
    if not path.is_file():
        raise ConfigError(key, path, f"no such file; give {wanted}")
    values: list[Any] = []
    try:
        for line in path.read_text().split("\n"):
            values.append(json.loads(line) if line.strip() else None)
    except json.JSONDecodeError as error:
        wrong = f"line {len(values) + 1} is not JSON ({error})"
        raise ConfigError(key, path, f"{wrong}; write one object per line") from error
    except (UnicodeDecodeError, OSError) as error:
        raise ConfigError(key, path, f"cannot be read as text ({error}); give {wanted}") from error
    return [value for value in values if value is not None]
