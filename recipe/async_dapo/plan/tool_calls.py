"""Calls of tools in a simulated trajectory: how many, where in its response, and how long each takes."""

from dataclasses import dataclass

import numpy as np

from ..config import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalls:
    """A response is cut into turns of equal length, with a call after each but the last.

    Attributes:
        count: calls of a trajectory.
        median_s, sigma: of a log-normal [s, of the logarithm].
        seed: decides every time.
    """

    count: int
    median_s: float
    sigma: float
    seed: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ConfigError("tool_calls", self.count, "must be >= 0")
        if self.median_s < 0:
            raise ConfigError("tool_median_s", self.median_s, "must be >= 0 seconds")
        if self.sigma < 0:
            raise ConfigError("tool_sigma", self.sigma, "must be >= 0; 0 = all calls take as long")

    def turn_left_tok(self, length_tok: int, done_tok: int) -> int:
        """Tokens until the turn ends in which a response of this length is."""
        turns = self.count + 1
        turn = done_tok * turns // length_tok  # the ones that have ended, at least
        while (end_tok := -(-length_tok * (turn + 1) // turns)) <= done_tok:
            turn += 1
        return min(end_tok, length_tok) - done_tok

    def takes_s(self, prompt: int, session: int, done_tok: int) -> float:
        """The call that comes after so many tokens."""
        rng = np.random.default_rng((self.seed, prompt, session, done_tok))
        return float(self.median_s * np.exp(self.sigma * rng.standard_normal()))
