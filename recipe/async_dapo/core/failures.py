"""What groups that have failed have in common, and when failures look systematic.

Training ends when hardly a group is complete, and at least twice as many groups have failed as a step trains (2 B), and
at least `MANY`; or `FEW`, where hardly any trajectory is scored either. The number has to be that large because groups
fail sooner than they are complete: a failure ends its group at once, while a complete one has waited for its longest
response. Where a tenth of the groups is complete and half of the trajectories are scored, a step is ended by mistake
once in a million at most. If all trajectories fail, that is known after two batches.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .outcome import GroupOutcome, Verdict
from .users_errors import Cause

FEW, MANY = 30, 200  # groups that have failed


class CauseCounts:
    """Counts what groups fail of, by place: of errors that name their prompt, the first stands for all raised there."""

    def __init__(self) -> None:
        self._examples: dict[str, str] = {}

    def count(self, outcomes: Iterable[GroupOutcome]) -> Counter[tuple[str, str]]:
        """Failed groups by reason and cause, in one line each; the cause is empty where it is unknown. In a validation
        they are those with a trajectory that failed."""
        failed = (outcome for outcome in outcomes if outcome.reason)
        return Counter((outcome.reason, self._example(outcome.cause)) for outcome in failed)

    def _example(self, cause: Cause | None) -> str:
        return "" if cause is None else self._examples.setdefault(cause.place, cause.summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedGroups:
    """How groups have ended [groups], and what became of their trajectories [count]."""

    valid: int = 0
    filtered: int = 0
    set_aside: int = 0  # not finished, though the round goes on
    failed: Mapping[str, int] = field(default_factory=dict)  # by reason
    causes: Mapping[tuple[str, str], int] = field(default_factory=dict)  # of failed ones: by reason and summary
    scored_trajectories: int = 0
    failed_trajectories: int = 0

    @classmethod
    def of(cls, outcomes: Sequence[GroupOutcome]) -> "EndedGroups":
        verdicts = Counter(outcome.verdict for outcome in outcomes)
        failed = [outcome for outcome in outcomes if outcome.verdict is Verdict.FAILED]
        return cls(
            valid=verdicts[Verdict.VALID],
            filtered=verdicts[Verdict.FILTERED],
            set_aside=verdicts[Verdict.SET_ASIDE],
            failed=Counter(outcome.reason for outcome in failed),
            causes=CauseCounts().count(failed),
            scored_trajectories=sum(outcome.scored for outcome in outcomes),
            failed_trajectories=sum(outcome.failed for outcome in outcomes),
        )

    def __str__(self) -> str:
        counts = {"valid": self.valid, "filtered": self.filtered, **self.failed}
        counts["set aside"] = self.set_aside
        return ", ".join(f"{count} {how}" for how, count in counts.items() if count)

    @property
    def num_failed(self) -> int:
        return sum(self.failed.values())

    @property
    def num_scored(self) -> int:
        return self.valid + self.filtered

    @property
    def main_reason(self) -> str:
        """Why most of the failed groups failed."""
        return max(self.failed, key=lambda reason: self.failed[reason])

    @property
    def main_cause(self) -> str:
        """What most groups that failed for the main reason failed of; empty if unknown."""
        known = [cause for cause in self.causes if cause[0] == self.main_reason and cause[1]]
        return max(known, key=lambda cause: self.causes[cause], default=("", ""))[1]

    def is_hopeless(self, target_valid_groups: int) -> bool:
        """Whether hardly a group can be complete."""
        hardly_any_scored = 10 * self.scored_trajectories < self.failed_trajectories
        return self._outnumber(self.num_failed, target_valid_groups, least=FEW if hardly_any_scored else MANY)

    def are_hardly_any(self, target_valid_groups: int) -> bool:
        """Whether hardly a group ends within the round, and the others are set aside instead."""
        return self._outnumber(self.set_aside, target_valid_groups, least=MANY)

    def _outnumber(self, lost: int, target_valid_groups: int, *, least: int) -> bool:
        """Whether so many groups are lost, and for a hundred of them not one is complete."""
        return lost >= max(least, 2 * target_valid_groups) and 100 * self.num_scored < lost
