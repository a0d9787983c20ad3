"""Tokens by policy version: the bound on staleness, and how stale a batch is.

What keeps a trained token from being too old:

- `max_staleness=0` carries no unfinished token into the next step (`AsyncDAPOConfig.keeps_tokens`);
- before a round `PromptPool` retires a group of which no token could be trained on any more (`retire`), names those
  that would be too stale in the next step, for which `Round` does not halt (`must_finish`), and has the oldest go
  first (`dispatch`);
- a fresh group starts only while it can be trained in time: `Quota.most_trainable`, which `Round` heeds;
- where engines have GPUs of their own, rounds go on and retire nothing: `Deadlines` (`extensions/separate`) starts no
  group that would be late, and holds a batch back for old groups that run;
- where the pool's size is not unlimited, so few trajectories are unfinished that the longest ends in time
  (`RoundSize.most_unfinished` of `core/over_sampling.py`); a size that the user names wins;
- an engine of its own GPUs that is too far behind takes no requests (`max_lag` of `RollingUpdate`, there, too);
- tokens that are too old all the same are masked out of the loss (`store.withhold`, by the replay buffer).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypedDict

# Of the tokens trained on [versions]: what the planner calls balanced and a run's hints call healthy. One batch in
# flight, as in verl's colocate_async, stays below it.
HEALTHY_MEAN_STALENESS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessLimit:
    """Bounded staleness: what must be finished first, and what can no longer be trained on. Step s trains the policy
    version s - 1; a token of version v has staleness s - 1 - v [versions].

    Args:
        max_staleness: of any trained token [versions, >= 0]; None = no limit.
    """

    max_staleness: int | None

    def rounds_in_flight(self, mean_len_tok: float, longest_tok: int) -> float | None:
        """How many rounds a mean trajectory may take, so that the longest one that starts now can still be trained on;
        at least the round it starts in. None = no limit.

        Args:
            longest_tok: the response limit [tokens].
        """
        if self.max_staleness is None:
            return None
        return max(1.0, self.max_staleness * mean_len_tok / longest_tok)

    def oldest_trainable(self, step: int) -> int:
        """The oldest policy version whose tokens may be trained on in this step."""
        return 0 if self.max_staleness is None else step - 1 - self.max_staleness

    def must_finish(self, version: int | None, step: int) -> bool:
        """Whether tokens of this version can be trained on in this step, but no longer in the next."""
        return version is not None and version < self.oldest_trainable(step + 1)

    def is_too_stale(self, version: int | None, step: int) -> bool:
        return version is not None and version < self.oldest_trainable(step)


class VersionTag(TypedDict):
    """Where a trajectory's tokens come from."""

    segments: list[tuple[int, int]]  # (policy version, tokens), in order
    min_global_steps: int  # oldest of these versions; verl's name
    age: int  # rounds it was carried over


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionShares:
    """From which policy versions a batch comes, by staleness [versions]."""

    tokens: Counter = field(default_factory=Counter)
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
            shares.ages[tag["age"]] += 1
        return shares

    @property
    def partial_share(self) -> float:
        """Share of tokens from older versions than the one being trained [0-1]."""
        older = sum(count for staleness, count in self.tokens.items() if staleness > 0)
        return older / self.tokens.total() if older else 0.0
