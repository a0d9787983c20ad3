"""How stale a batch is: its tokens and trajectories by the policy version they come from."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypedDict


class VersionTag(TypedDict):
    """Where a trajectory's tokens come from."""

    segments: list[tuple[int, int]]  # (policy version, tokens), in order
    min_global_steps: int  # oldest of these versions; verl's name
    age: int  # rounds it was carried over


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionShares:
    """From which policy versions a batch comes, by staleness [versions]."""

    tokens: Counter = field(default_factory=Counter)
    trajectories: Counter = field(default_factory=Counter)
    ages: Counter = field(default_factory=Counter)

    @classmethod
    def of(cls, tags: Iterable[VersionTag], *, step: int) -> "VersionShares":
        """Count a batch.

        Args:
            tags: one per trajectory.
            step: the step that trains the batch.
        """
        shares = cls()
        for tag in tags:
            for version, num_tokens in tag["segments"]:
                shares.tokens[step - 1 - version] += num_tokens
            shares.trajectories[step - 1 - tag["min_global_steps"]] += 1
            shares.ages[tag["age"]] += 1
        return shares

    @property
    def partial_share(self) -> float:
        """Share of tokens from older versions than the one being trained [0-1]."""
        older = sum(count for staleness, count in self.tokens.items() if staleness > 0)
        return older / self.tokens.total() if older else 0.0
