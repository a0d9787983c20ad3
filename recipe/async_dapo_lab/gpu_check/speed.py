"""The engine's speed over batch and context: a record that the planner takes with `--calibrate`."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...async_dapo.config.values import ConfigError
from ..plan.calibration import calibrate
from .verdicts import Verdict, failed, first_failure

SHORT_TOK, LONG_TOK = 32, 160
MOST_RMS = 0.25  # of the fit, over the record's lines
_AGAIN = "end other work on this machine and measure again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    batch: int
    context_tok: int  # of every request, before it generates

    @property
    def kv_tok(self) -> int:
        """In the cache while the second part of the long responses is generated, on average."""
        return self.batch * (self.context_tok + (SHORT_TOK + LONG_TOK) // 2)


def cells(*, kv_room_tok: int, batches: Sequence[int], contexts_tok: Sequence[int]) -> Iterator[Cell]:
    """Those that fit into the KV cache."""
    for context_tok, batch in itertools.product(contexts_tok, batches):
        if batch * (context_tok + LONG_TOK) <= kv_room_tok:
            yield Cell(batch=batch, context_tok=context_tok)


def record_line(cell: Cell, *, short_s: float, long_s: float) -> dict[str, float]:
    """The difference of two generations is decoding alone; what the short one takes beyond it is prefill and start.

    Args:
        short_s, long_s: seconds in which every request of the cell got `SHORT_TOK` and `LONG_TOK` tokens.
    """
    step_s = (long_s - short_s) / (LONG_TOK - SHORT_TOK)
    return {
        "inflight": cell.batch,
        "kv_tok": cell.kv_tok,
        "tokens_per_s": round(cell.batch / step_s, 2),
        "context_tok": cell.context_tok,
        "prefill_s": round(short_s - SHORT_TOK * step_s, 4),  # of all requests of the cell
    }


def judge_speed(facts: Mapping[str, Any]) -> Verdict:
    """Whether the planner's formula fits the record."""
    best = facts["best_tokens_per_s"]
    if not best:
        return failed(f"the KV cache of {facts['kv_room_tok']} tokens is too small to measure", "free GPU memory")
    try:
        fitted = calibrate(facts["record"], num_servers=1)
    except ConfigError as error:
        return failed(str(error), _AGAIN)
    off = f"speeds are {fitted.relative_rms:.0%} off the planner's formula, at most {MOST_RMS:.0%}"
    found = f"up to {best:,.0f} tokens/s; plan with --calibrate {facts['record']}"
    return first_failure((fitted.relative_rms <= MOST_RMS, off, _AGAIN), else_found=found)
