"""Costs measured of a real engine, in place of constants: fitted to a JSONL record, with lines such as

    {"inflight": b, "tokens_per_s": r, "kv_tok": k}

for decoding of one server with b requests in flight that hold k tokens of KV cache together; `kv_tok` may be left out.
The fit is that of `StepCost`: a step takes base + per_request * b [+ per_kv_token * k]. `gpu_check` writes such a
record.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ...async_dapo.config.values import ConfigError
from .costs import StepCost
from .lengths import read_jsonl

TERMS = ("base_s", "per_request_s", "per_kv_token_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCosts:
    """What a record says. None = it does not say."""

    base_s: float
    per_request_s: float
    per_kv_token_s: float | None
    num_points: int
    relative_rms: float  # of the fit, over its points

    def apply(self, cost: StepCost) -> StepCost:
        """The measured decode step. What was measured of a request holds the reading of its windows and state, which
        the cost counts as tokens of cache, and of experts.
        """
        per_kv_token_s = self.per_kv_token_s or 0.0
        return replace(
            cost,
            base_s=self.base_s,
            experts_s=0.0,
            per_request_s=max(0.0, self.per_request_s - per_kv_token_s * cost.request_kv_tok),
            per_kv_token_s=per_kv_token_s,
        )

    def __str__(self) -> str:
        return (
            f"{self.num_points} points, {100 * self.relative_rms:.0f} % rms: a step takes {1e3 * self.base_s:.3f} ms + "
            f"{1e6 * self.per_request_s:.1f} us per request"
        )


def calibrate(path: str) -> MeasuredCosts:
    """Fit a record.

    Raises:
        ConfigError: when the file is missing, empty, says too little to fit a decode step, has a value that is no
            number or below zero, or gives `kv_tok` in part.
    """
    lines = read_jsonl(Path(path), key="calibrate", wanted="a JSONL record of a real engine")
    rows = [row for row in lines if isinstance(row, dict)]
    if not rows:
        raise ConfigError("calibrate", path, f"the file is empty; a line needs {_FORM}")
    _check_kv(path, rows)
    equations = [equation for row in rows if (equation := _equation(row, path)) is not None]
    if not equations:
        raise ConfigError("calibrate", path, f"no line can be used; a line needs {_FORM}")
    terms, seconds = (np.array(side) for side in zip(*equations, strict=True))
    weights, fit_error = _fit(terms, seconds)
    measured = dict(zip(TERMS, weights, strict=True))
    if measured["base_s"] + measured["per_request_s"] <= 0:
        raise ConfigError("calibrate", path, "requests take no time per token; record more lengths and concurrencies")
    has_kv = bool(terms[:, TERMS.index("per_kv_token_s")].any())
    return MeasuredCosts(
        base_s=measured["base_s"],
        per_request_s=measured["per_request_s"],
        per_kv_token_s=measured["per_kv_token_s"] if has_kv else None,
        num_points=len(equations),
        relative_rms=fit_error,
    )


_FORM = "`inflight` with `tokens_per_s` (and `kv_tok`, the tokens of KV cache that a step reads)"

Equation = tuple[tuple[float, float, float], float]  # coefficients of TERMS, seconds


def _check_kv(path: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Without `kv_tok` the accelerator's bandwidth says what reading costs; lines without it would count as 0."""
    gives = [row.get("kv_tok") is not None for row in rows if "tokens_per_s" in row]
    if any(gives) and not all(gives):
        raise ConfigError(
            "calibrate", path, f"`kv_tok` is in {sum(gives)} of {len(gives)} lines; give it in all or none"
        )


def _equation(row: Mapping[str, Any], path: str) -> Equation | None:
    """One line as a linear equation in the terms; None for a line of another kind, and for one of an idle engine."""
    if row.get("inflight") is None or row.get("tokens_per_s") is None:
        return None
    inflight, tokens_per_s, kv_tok = (_number(row, name, path) for name in ("inflight", "tokens_per_s", "kv_tok"))
    return ((1.0, inflight, kv_tok), inflight / tokens_per_s) if inflight and tokens_per_s else None


def _number(row: Mapping[str, Any], name: str, path: str) -> float:
    """Of a line; 0 where it has none."""
    value = row.get(name)
    try:
        number = float(value or 0)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ConfigError("calibrate", path, f"a line has {name}={value}; it must be a number >= 0")
    return number


def _fit(terms: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, float]:
    """Least squares of relative errors with terms >= 0: the best over all subsets of the terms."""
    scaled, ones = terms / seconds[:, None], np.ones(len(seconds))
    best, best_error = np.zeros(terms.shape[1]), np.inf
    useful = [i for i in range(terms.shape[1]) if terms[:, i].any()]
    for size in range(1, len(useful) + 1):
        for subset in combinations(useful, size):
            chosen = scaled[:, subset]
            if np.linalg.matrix_rank(chosen) < size:
                continue
            solution = np.linalg.lstsq(chosen, ones, rcond=None)[0]
            error = float(np.sqrt(np.mean((chosen @ solution - ones) ** 2)))
            if (solution >= 0).all() and error < best_error - 1e-12:
                best = np.zeros(terms.shape[1])
                best[list(subset)] = solution
                best_error = error
    return best, best_error
