"""Bounded staleness: what must be finished first, and what can no longer be trained on."""

from dataclasses import dataclass

# Of the tokens trained on [versions]: what the planner calls balanced and a run's hints call healthy. One batch in
# flight, as in verl's colocate_async, stays below it.
HEALTHY_MEAN_STALENESS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessLimit:
    """Step s trains the policy version s - 1; a token of version v has staleness s - 1 - v [versions].

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

    def must_finish(self, oldest_version: int | None, step: int) -> bool:
        """Whether tokens of this version can be trained on in this step, but no longer in the next."""
        return oldest_version is not None and oldest_version < self.oldest_trainable(step + 1)

    def is_too_stale(self, oldest_version: int | None, step: int) -> bool:
        return oldest_version is not None and oldest_version < self.oldest_trainable(step)
