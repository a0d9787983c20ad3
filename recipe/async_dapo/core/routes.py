"""The experts that tokens were sent to, as engines recorded them, for router replay.

    prompt          | generated under version 3 | after a stop, under version 4
    r0 r1 .. r(p-1) | r(p) ...                  | ...            no row of the last token: no pass has read it

Row k is that of the pass that read token k of a request's context. A request that goes on after a stop is read again,
from its prompt on, under other weights: its rows take the place of those held, since what it samples follows from the
keys and values that it has now. An engine tells rows by their places in its KV cache: of tokens that it finds there,
the rows are those of the pass that has put them there.
"""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, zip_longest


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Rows [layers, top-k] of the numbers of experts, in blocks as they came."""

    layers: int
    top_k: int
    itemsize: int  # bytes of a number
    blocks: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if self.row_bytes <= 0 or any(len(block) % self.row_bytes for block in self.blocks):
            raise ValueError(f"blocks of {[*map(len, self.blocks)]} bytes are no rows of {self.row_bytes}")

    @property
    def row_bytes(self) -> int:
        return self.layers * self.top_k * self.itemsize

    @property
    def rows(self) -> int:
        return sum(map(len, self.blocks)) // self.row_bytes

    def joined(self, start: int, block: bytes) -> "Routes":
        """With the rows of a block that begins at row `start`: those that follow, or, at row 0, all of them anew. Of
        blocks that come again nothing is copied: the turns of a trajectory share them.

        Raises:
            ValueError: if they begin elsewhere.
        """
        if start not in (0, self.rows):
            raise ValueError(f"routes of token {start} follow on those of {self.rows} tokens")
        if start:
            return replace(self, blocks=(*self.blocks, block))
        ends = accumulate(map(len, self.blocks))
        parts = [block[begin:end] for begin, end in pairwise((0, *ends, len(block)))]
        shared = (held if part == held else part for part, held in zip_longest(parts, self.blocks))
        return replace(self, blocks=tuple(filter(None, shared)))

    def first(self, rows: int) -> "Routes":
        """The first ones, at most so many."""
        return self if rows >= self.rows else replace(self, blocks=(b"".join(self.blocks)[: rows * self.row_bytes],))
