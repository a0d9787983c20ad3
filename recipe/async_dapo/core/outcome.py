"""How prompt groups end: their verdicts, a worker's report to the coordinator, and what failures have in common.

A group whose trajectories all score the same has no gradient: DAPO's dynamic sampling (arXiv:2503.14476, eq. 11).

Training ends when failures look systematic: when hardly a group is complete, and at least twice as many groups have
failed as a step trains (2 B), and at least `MANY`; or `FEW`, where hardly any trajectory is scored either. The number
has to be that large because groups fail sooner than they are complete: a failure ends its group at once, while a
complete one has waited for its longest response. Where a tenth of the groups is complete and half of the trajectories
are scored, a step is ended by mistake once in a million at most. If all trajectories fail, that is known after two
batches.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from .trajectory import PromptGroup

FEW, MANY = 30, 200  # groups that have failed

# Metrics of a group that differ by no more than this, relative to the largest one or to 1, are the same. Sums in
# another order differ by 1e-16, and differences below 1e-7 are lost where scores become float32. verl adds 1e-6 to the
# standard deviation that it divides a group's advantages by, so a smaller difference teaches next to nothing.
SAME_METRIC = 1e-6


class Verdict(StrEnum):
    """How a prompt group ended in a round."""

    VALID = "valid"  # complete, and its metric varies: it can be trained on
    FILTERED = "filtered"  # complete, but every trajectory has the same metric: no gradient
    FAILED = "failed"  # a trajectory failed for good; `reason` says why
    SET_ASIDE = "set_aside"  # interrupted by the round's limits: continued in a later round
    # Complete, but started after the groups that `fifo` waited for: discarded and generated again, so that short
    # answers are not preferred.
    REDRAWN = "redrawn"


JUDGED = (Verdict.VALID, Verdict.FILTERED)  # every trajectory has been scored


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a trajectory failed.

    Attributes:
        summary: one line: what was raised, and in which file and line of the user's code.
        traceback: from the user's first frame on; empty where nothing was raised.
    """

    summary: str
    traceback: str = ""

    @property
    def place(self) -> str:
        """The files and lines it was raised through; what is raised may name the prompt, so that no two are alike."""
        lines = [line for line in self.traceback.splitlines() if line.startswith("  File ")]
        return "\n".join(lines) or self.summary


class TrajectoryFailed(Exception):
    """A trajectory cannot be completed, whatever its loop does with errors; `reason` is the counted kind."""

    def __init__(self, reason: str, cause: Cause) -> None:
        super().__init__(f"{reason}: {cause.summary}")
        self.reason = reason
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome:
    """A worker's report that a prompt group has ended."""

    prompt_uid: str
    verdict: Verdict
    reason: str = ""
    cause: Cause | None = None  # that of its first trajectory that failed
    response_lens_tok: tuple[int, ...] = ()  # generated tokens of each trajectory
    oldest_version: int | None = None  # of all generated tokens of the group
    newest_version: int | None = None
    scored: int = 0  # trajectories [count]
    failed: int = 0  # trajectories that failed for good; the others were interrupted, in a validation kept [count]
    metrics: tuple[float, ...] = ()  # of its trajectories, where it was judged by them
    source: str = ""  # see `PromptGroup.source`

    @classmethod
    def of(
        cls,
        group: PromptGroup,
        verdict: Verdict,
        *,
        reason: str = "",
        cause: Cause | None = None,
        failed: int = 0,
        metrics: Sequence[float] = (),
    ) -> "GroupOutcome":
        """The report of a group with what it has generated so far."""
        versions = group.versions()
        return cls(
            prompt_uid=group.uid,
            verdict=verdict,
            reason=reason,
            cause=cause,
            response_lens_tok=tuple(trajectory.generated_tok for trajectory in group.trajectories),
            oldest_version=min(versions, default=None),
            newest_version=max(versions, default=None),
            scored=len(group.trajectories) - len(group.unfinished),
            failed=failed,
            metrics=tuple(metrics),
            source=group.source,
        )


class KnownPlaces:
    """The places of causes that have been logged: each is worth a line once."""

    def __init__(self) -> None:
        self._places: set[str] = set()

    def is_new(self, cause: Cause) -> bool:
        """Whether its place was not known; from now on it is."""
        is_new = cause.place not in self._places
        self._places.add(cause.place)
        return is_new


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


def is_certain(metrics: Iterable[float]) -> bool:
    """Whether a group with trajectories of these raw metrics is sure to be valid, whatever the others will be: two
    differ by more than `SAME_METRIC`. Never reverts, if none fails.

    Raises:
        ValueError: if a metric is not finite.
    """
    known = list(metrics)
    for metric in known:
        if not math.isfinite(metric):
            raise ValueError(f"the metrics of a group must be finite numbers, got {metric}")
    return bool(known) and not math.isclose(min(known), max(known), rel_tol=SAME_METRIC, abs_tol=SAME_METRIC)


def judge_group(metrics: Sequence[float]) -> Verdict:
    """Valid if the raw metric varies over the n trajectories of the group.

    Raises:
        ValueError: if a metric is not finite, or there is none.
    """
    if not metrics:
        raise ValueError("the metrics of a group must be finite numbers, got none")
    return Verdict.VALID if is_certain(metrics) else Verdict.FILTERED


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
