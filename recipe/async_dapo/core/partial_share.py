"""A cap on the share of older versions in a batch: what is held beyond B is adapted to it, by additive increase and
halving. To start fewer groups interrupts less.
"""

from dataclasses import dataclass

from .over_sampling import AvailableGroups, OverSampling, OverSamplingState


@dataclass(slots=True, kw_only=True)
class CappedOverSampling(OverSampling):
    """Over-sampling that starts as one without a cap, and holds less where older versions have too large a share.

    Args:
        max_partial_share: of a batch's tokens that may come from older versions [0-1].
    """

    max_partial_share: float
    _surplus: int = 0

    def __post_init__(self) -> None:
        self._surplus = self.most_surplus

    @property
    def surplus(self) -> int:
        return self._surplus

    def groups_to_draw(self, available: AvailableGroups) -> int:
        """As many as are held again then."""
        return OverSampling.groups_to_draw(self, available) if self.batch_size is None else self._surplus + 1

    def observe(self, partial_share: float, *, valid: int = 0, judged: int = 0) -> None:
        OverSampling.observe(self, partial_share, valid=valid, judged=judged)
        if partial_share > self.max_partial_share:
            self._surplus //= 2
        else:
            self._surplus = min(self.most_surplus, self._surplus + max(1, self.most_surplus // 8))

    def restore(self, state: OverSamplingState) -> None:
        OverSampling.restore(self, state)
        self._surplus = min(self.most_surplus, state.surplus)
