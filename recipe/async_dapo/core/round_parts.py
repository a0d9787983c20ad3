"""The parts of a round: groups that are counted towards one quota of the batch. Without quotas there is one part.

A part is filled when its rule is met. It may begin groups ahead until the others are filled, too: engines stay busy,
and what has begun is trained in later steps. How much it begins is bounded as it is for a whole round.
"""

from dataclasses import dataclass

from .over_sampling import AvailableGroups
from .stop_rules import StopRule

ALL = ""  # the part of a round without quotas: every group is of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a step needs of a part of the groups, and what may be begun of it."""

    target_valid_groups: int  # B of the part [groups]
    carried_valid_groups: int  # left over from earlier rounds [groups]
    # (1 + max_staleness) * B: as many valid groups as can be trained before tokens sampled now are too stale; None = no
    # limit on staleness.
    most_trainable: int | None = None
    valid_share: float = 1.0  # of the groups whose verdict is open, expected [0-1]
    expected_share: float = 1.0  # what one of these counts when prompts are asked for [0-1]
    begins_ahead: bool = True  # groups start while it is filled and other parts are not


class RoundPart:
    """A part of the open round: its rule, and how many groups are valid."""

    def __init__(self, quota: Quota, rule: StopRule | None) -> None:
        self.quota = quota
        self.rule = rule
        self.valid = quota.carried_valid_groups

    @property
    def is_filled(self) -> bool:
        return self.rule is not None and self.rule.is_met

    def available(self, *, unfinished: int, certain: int) -> AvailableGroups:
        """
        Args:
            unfinished: groups that may still become valid.
            certain: of these.
        """
        return AvailableGroups(certain=self.valid + certain, open=max(0, unfinished - certain))

    def wants_prompts(self, available: AvailableGroups) -> bool:
        """Whether the target cannot be reached, or is not expected to be, with these groups."""
        return available.expected_valid(self.quota.expected_share) < self.quota.target_valid_groups

    def can_be_trained(self, begun: AvailableGroups) -> bool:
        """Whether one more group can be trained in time, if all that have begun are."""
        most = self.quota.most_trainable
        return most is None or begun.most_valid(self.quota.valid_share) + 1 <= most

    def is_ahead(self, begun: AvailableGroups) -> bool:
        """Whether those that have begun are expected to fill it."""
        return begun.expected_valid(self.quota.valid_share) >= self.quota.target_valid_groups
