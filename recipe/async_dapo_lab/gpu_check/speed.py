"""What an engine's speed is measured on: cells of batch and context, as lines of the planner's record."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

BATCHES = (1, 8, 32, 64, 128, 256)
CONTEXTS_TOK = (512, 2048, 8192, 16_384)
SHORT_TOK, LONG_TOK = 32, 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    batch: int
    context_tok: int  # of every request, before it generates

    @property
    def kv_tok(self) -> int:
        """In the cache while the second part of the long responses is generated, on average."""
        return self.batch * (self.context_tok + (SHORT_TOK + LONG_TOK) // 2)


def cells(
    *, kv_room_tok: int, batches: Sequence[int] = BATCHES, contexts_tok: Sequence[int] = CONTEXTS_TOK
) -> Iterator[Cell]:
    """Those that fit into the KV cache."""
    for context_tok, batch in itertools.product(contexts_tok, batches):
        if batch * (context_tok + LONG_TOK) <= kv_room_tok:
            yield Cell(batch=batch, context_tok=context_tok)


def record_line(cell: Cell, *, short_s: float, long_s: float) -> dict[str, float]:
    """The difference of two generations is decoding alone, without prefill and start.

    Args:
        short_s, long_s: seconds in which every request of the cell got `SHORT_TOK` and `LONG_TOK` tokens.
    """
    tokens_per_s = cell.batch * (LONG_TOK - SHORT_TOK) / (long_s - short_s)
    return {"inflight": cell.batch, "kv_tok": cell.kv_tok, "tokens_per_s": round(tokens_per_s, 2)}


def measure(cell: Cell, generate_s: Callable[[Cell, int], float]) -> dict[str, float]:
    """A line of the record.

    Args:
        generate_s: seconds in which every request of a cell gets so many tokens.
    """
    return record_line(cell, short_s=generate_s(cell, SHORT_TOK), long_s=generate_s(cell, LONG_TOK))
