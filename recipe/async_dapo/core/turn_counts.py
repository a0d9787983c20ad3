"""The turns of trajectories that ended in a round, and the time that they have spent in calls of tools."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .trajectory import Turn


@dataclass(slots=True)
class TurnCounts:
    trajectories: int = 0
    turns: int = 0
    turns_max: int = 0  # of a trajectory
    tokens: int = 0
    tokens_max: int = 0  # of a turn
    calls_s: float = 0.0

    @classmethod
    def of(cls, turns: Sequence[Turn], calls_s: float) -> "TurnCounts":
        """One trajectory's."""
        lens_tok = [turn.generated_tok for turn in turns]
        return cls(1, len(turns), len(turns), sum(lens_tok), max(lens_tok, default=0), calls_s)

    @classmethod
    def total(cls, parts: Iterable["TurnCounts"]) -> "TurnCounts":
        whole = cls()
        for part in parts:
            whole.trajectories += part.trajectories
            whole.turns += part.turns
            whole.turns_max = max(whole.turns_max, part.turns_max)
            whole.tokens += part.tokens
            whole.tokens_max = max(whole.tokens_max, part.tokens_max)
            whole.calls_s += part.calls_s
        return whole

    def figures(self) -> dict[str, float]:
        """For the metrics."""
        return {
            "mean": self.turns / max(1, self.trajectories),
            "max": self.turns_max,
            "tokens/mean": self.tokens / max(1, self.turns),
            "tokens/max": self.tokens_max,
            "calls_s": self.calls_s / max(1, self.trajectories),
        }
