"""Which valid groups make up a batch, and of what kind prompts are drawn for it: any, unless a mix of its own says so.

A mix divides groups into parts (`round_parts.py`). This one has a single part, so a batch is the valid groups that the
stop rule puts first.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from .outcome import JUDGED, GroupOutcome, Verdict
from .over_sampling import AvailableGroups, OverSampling
from .round_parts import ALL, Quota
from .trajectory import PromptGroup


class Carried(Protocol):
    """A valid group that has not been trained."""

    @property
    def uid(self) -> str: ...

    @property
    def group(self) -> PromptGroup: ...


class Mix:
    """Batches of any valid groups.

    Args:
        over_sampling: over all groups.
    """

    def __init__(self, over_sampling: OverSampling) -> None:
        self.over_sampling = over_sampling

    def part_of(self, group: PromptGroup) -> str:
        return ALL

    def quotas(self, carried: Sequence[Carried]) -> Mapping[str, Quota] | None:
        """Of the step's round; None = there is one part.

        Args:
            carried: valid groups of earlier rounds.
        """
        return None

    def missing(self, available: Mapping[str, AvailableGroups]) -> dict[str, int]:
        """Groups to draw of each part before a round opens, where there are any."""
        return _some({ALL: self.over_sampling.missing(available.get(ALL, AvailableGroups(certain=0, open=0)))})

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

    def take(self, carried: Sequence[Carried]) -> list[str]:
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


def _some(counts: Mapping[str, int]) -> dict[str, int]:
    return {part: count for part, count in counts.items() if count}
