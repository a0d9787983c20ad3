"""How many groups to hold at the start of a round: APRIL's semantics, throttled when too much is off-policy."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class OverSampling:
    """The over-sampling target, adapted between B and its configured value (additive increase, halving).

    The tokens of older versions in a batch come from what the stop interrupted; starting fewer groups interrupts less.

    Args:
        target_valid_groups: B [groups].
        batch_size: groups to hold at the start of a round, and, without a cap, to draw at a time. Larger than B:
            over-sampling. Smaller: rounds are filled at that granularity until B can be reached.
        max_partial_share: share of a batch's tokens that may come from older versions [0-1]; None = no cap.
    """

    target_valid_groups: int
    batch_size: int
    max_partial_share: float | None = None
    _surplus: int = 0  # groups beyond B

    def __post_init__(self) -> None:
        self._surplus = self._max_surplus

    @property
    def groups_to_hold(self) -> int:
        return self.target_valid_groups + self._surplus

    @property
    def groups_to_draw(self) -> int:
        """Groups to draw when those at hand cannot reach B any more; with a cap, as many as are held again then."""
        return self.batch_size if self.max_partial_share is None else self._surplus + 1

    def observe(self, partial_share: float) -> None:
        """Adapt to the share of older versions in the batch that was just trained."""
        if self.max_partial_share is None:
            return
        if partial_share > self.max_partial_share:
            self._surplus //= 2
        else:
            self._surplus = min(self._max_surplus, self._surplus + max(1, self._max_surplus // 8))

    @property
    def surplus(self) -> int:
        """Groups beyond B, as adapted [groups]."""
        return self._surplus

    def restore(self, surplus: int) -> None:
        """Go on with what was adapted, as far as the options of this run allow."""
        if self.max_partial_share is not None:
            self._surplus = min(self._max_surplus, surplus)

    @property
    def _max_surplus(self) -> int:
        chunks = -(-self.target_valid_groups // self.batch_size)
        return chunks * self.batch_size - self.target_valid_groups
