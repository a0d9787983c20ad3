"""The experts that vLLM sent the tokens of a request to: taken from its front end as they arrive, and put into the
record of a turn (`core/routes.py`).

vLLM gives them with the last output of a request, and not where that one joins an output that nobody has read yet, as
after a stop: they are taken from the list in which it collects them, so that each delivery has those of its tokens.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.routes import Routes
from ..core.trajectory import BrokenRecord, Turn


class RequestRoutes:
    """Of one request.

    Args:
        chunks: the front end's list of arrays [tokens, layers, top-k], the first one of the whole prompt, then one for
            each token that was read. What is taken leaves it.
    """

    def __init__(self, chunks: list[np.ndarray]) -> None:
        self._chunks = chunks
        self._taken_tok = 0
        self._due_tok = -1  # the last token that was generated has not been read

    def take(self, num_tokens: int) -> tuple[int, np.ndarray]:
        """Position of the first row, and the rows up to those that so many further tokens were sampled from. The engine
        may be ahead of what is delivered: routes of tokens that would be lost with a server stay behind.

        Raises:
            BrokenRecord: if some are missing.
        """
        start, rows = self._taken_tok, np.concatenate(self._chunks) if self._chunks else np.empty((0, 1, 1), np.uint8)
        if start == 0 and self._chunks:
            self._due_tok += len(self._chunks[0])
        self._due_tok += num_tokens
        if self._due_tok - start > len(rows):
            raise BrokenRecord(f"vLLM gave the routes of {start + len(rows)} tokens, not of {self._due_tok}")
        taken, left = np.split(rows, [self._due_tok - start])
        self._chunks[:], self._taken_tok = [left], self._due_tok
        return start, taken


def watch_routes(processor: Any, watch: Callable[[str, RequestRoutes], None]) -> None:
    """Tell of each request that vLLM's front end admits, by its caller's name."""
    admit = processor.add_request

    def add_request(request: Any, *args: Any, **kwargs: Any) -> None:
        admit(request, *args, **kwargs)
        state = processor.request_states[request.request_id]
        watch(state.external_req_id, RequestRoutes(state.routed_experts_chunks))

    processor.add_request = add_request


def append_routes(turn: Turn, start: int, rows: np.ndarray) -> None:
    """Add what one request returned.

    Args:
        start: position in the context of the first row; 0 in what a request returns first.
        rows: [tokens, layers, top-k], unsigned.

    Raises:
        BrokenRecord: when there are tokens without routes before it.
    """
    new = routes_of(rows)
    try:
        turn.routes = (turn.routes or replace(new, blocks=())).joined(start, *new.blocks)
    except ValueError as error:
        raise BrokenRecord(str(error)) from error


def routes_of(rows: np.ndarray) -> Routes:
    """Of [tokens, layers, top-k], unsigned."""
    return Routes(layers=rows.shape[1], top_k=rows.shape[2], itemsize=rows.itemsize, blocks=(rows.tobytes(),))


def array_of(routes: Routes) -> np.ndarray:
    """[tokens, layers, top-k]"""
    numbers = np.frombuffer(b"".join(routes.blocks), f"u{routes.itemsize}")
    return numbers.reshape(-1, routes.layers, routes.top_k)


def routes_of_turn(turn: Turn, routes: Routes) -> np.ndarray:
    """Of a whole turn, [tokens, layers, top-k] as verl's loops pass them on: all of its context but the last token.

    Raises:
        BrokenRecord: if they are those of another number of tokens.
    """
    if routes.rows != (wanted := turn.prompt_len_tok + turn.generated_tok - 1):
        raise BrokenRecord(f"a turn has the routes of {routes.rows} tokens, not of {wanted}")
    return array_of(routes)
