"""The experts that tokens were sent to, as engines recorded them, for router replay.

    prompt          | generated under version 3 | after a stop, under version 4
    r0 r1 .. r(p-1) | r(p) ...                  | ...            no row of the last token: no pass has read it

Row k is that of the pass that read token k of a request's context. The first record of a row stays: a request that goes
on after a stop is read again under other weights, and only its new rows are added.
"""

from dataclasses import dataclass, replace


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
        """With the rows of a block that begins at row `start`, as far as they are new.

        Raises:
            ValueError: if there is a gap between.
        """
        if start > self.rows:
            raise ValueError(f"routes of token {start} follow on those of {self.rows} tokens")
        new = block[(self.rows - start) * self.row_bytes :]
        return replace(self, blocks=(*self.blocks, new)) if new else self

    def first(self, rows: int) -> "Routes":
        """The first ones, at most so many."""
        return self if rows >= self.rows else replace(self, blocks=(b"".join(self.blocks)[: rows * self.row_bytes],))
