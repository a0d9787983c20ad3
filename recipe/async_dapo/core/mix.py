"""What a batch is made of: parts, each with a quota of valid groups; and of which kind prompts are drawn for them.

Without shares there is one part: a batch is the valid groups that the stop rule puts first (`Mix`). A source of prompts
may bring a mix of its own. A part of a round is filled when its rule is met. It may begin groups ahead until the others
are filled, too: engines stay busy, and what has begun is trained in later steps. How much it begins is bounded as it is
for a whole round.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .outcome import JUDGED, CarriedGroup, GroupOutcome, Verdict
from .over_sampling import AvailableGroups, OverSampling
from .stop_rules import StopRule
from .trajectory import PromptGroup

ALL = "all groups"  # the one part of a batch without shares, whatever source a group is of; none is called so


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a step needs of a part of the groups, and what may be begun of it."""

    target_valid_groups: int  # B of the part [groups]
    carried_valid_groups: int  # left over from earlier rounds [groups]
    # As many valid groups as can be trained before tokens sampled now are too stale; None = no limit on staleness.
    most_trainable: int | None = None
    valid_share: float = 1.0  # of the groups whose verdict is open, expected [0-1]
    expected_share: float = 1.0  # what one of these counts when prompts are asked for [0-1]
    begins_ahead: bool = True  # groups start while it is filled and other parts are not

    @classmethod
    def of(
        cls, over_sampling: OverSampling, *, carried: int, most_trainable: int | None, begins_ahead: bool = True
    ) -> "Quota":
        """Of a part with over-sampling of its own."""
        return cls(
            target_valid_groups=over_sampling.target_valid_groups,
            carried_valid_groups=carried,
            most_trainable=most_trainable,
            valid_share=over_sampling.valid_share,
            expected_share=over_sampling.expected_share,
            begins_ahead=begins_ahead,
        )


class RoundPart:
    """A part of the open round: its rule, and how many groups are valid."""

    def __init__(self, quota: Quota, rule: StopRule) -> None:
        self.quota = quota
        self.rule = rule
        self.valid = quota.carried_valid_groups

    @property
    def is_filled(self) -> bool:
        return self.rule.is_met

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


class Mix:
    """Batches of any valid groups.

    Args:
        over_sampling: over all groups.
    """

    def __init__(self, over_sampling: OverSampling) -> None:
        self.over_sampling = over_sampling

    def part_of(self, group: PromptGroup) -> str:
        return ALL

    def quotas(self, carried: Sequence[CarriedGroup]) -> Mapping[str, Quota]:
        """What the step's round needs of each part.

        Args:
            carried: valid groups of earlier rounds.
        """
        own = self.over_sampling
        most = None if own.versions is None else own.versions * own.target_valid_groups
        return {ALL: Quota.of(own, carried=len(carried), most_trainable=most)}

    def missing(self, available: Mapping[str, AvailableGroups]) -> dict[str, int]:
        """Groups to draw of each part before a round opens, where there are any."""
        count = self.over_sampling.missing(available.get(ALL, AvailableGroups(certain=0, open=0)))
        return {ALL: count} if count else {}

    @property
    def groups_to_hold(self) -> int:
        """Of all parts, at the start of a round, if none is certain."""
        return sum(self.missing({}).values())

    def to_draw(self, available: Mapping[str, AvailableGroups]) -> dict[str, int]:
        """Groups to draw of each part that is not expected to reach its target any more with the available ones."""
        return {ALL: self.over_sampling.groups_to_draw(available[ALL])}

    def batch_unit(self, part: str) -> int:
        """Groups of a part that count as one batch of prompts."""
        return self.over_sampling.batch_unit

    def take(self, carried: Sequence[CarriedGroup]) -> list[str]:
        """The uids of the groups to train, of those that are valid. The next step's batch follows."""
        return [one.uid for one in carried[: self.over_sampling.target_valid_groups]]

    def observe(self, partial_share: float, outcomes: Iterable[GroupOutcome]) -> None:
        """Learn from a step.

        Args:
            partial_share: of older versions in the batch that was just trained [0-1].
            outcomes: of the groups that ended in the round.
        """
        judged = [outcome for outcome in outcomes if outcome.verdict in JUDGED]
        valid = sum(outcome.verdict is Verdict.VALID for outcome in judged)
        self.over_sampling.observe(partial_share, valid=valid, judged=len(judged))
