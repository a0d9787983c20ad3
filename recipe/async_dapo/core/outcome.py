"""How prompt groups end: their verdicts, a worker's report to the coordinator, and what failures have in common.

A group whose trajectories all score the same has no gradient: DAPO's dynamic sampling (arXiv:2503.14476, eq. 11).

Trajectories that fail are no accident where too few of the groups that they end are left to train on. A group is lost
with its first trajectory that fails. If each fails with probability q, a share of (1 - q) ** n of the groups of n is
complete. Whether q is too high is Wald's sequential probability ratio test on trajectories, scored ones against failed
ones: it may be asked after every group, and a step of which at least a tenth of the groups are complete is stopped with
a probability of at most one in a million, however many it draws. If all trajectories fail, that is known after 15
failures (n = 16); if every second one does, after about 40 trajectories.

Trajectories of a prompt may fail together, or one of each prompt's: the same test on groups does not mind.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from .trajectory import PromptGroup

TOLERABLE_COMPLETE_SHARE = 0.1
HOPELESS_COMPLETE_SHARE = 0.001
FALSE_ALARM = 1e-6

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
    failed: int = 0  # trajectories that failed for good; their siblings were interrupted, in a validation kept [count]
    metrics: tuple[float, ...] = ()  # of its trajectories, where it was judged by them

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

    def is_hopeless(self, n: int) -> bool:
        """Whether hardly a group of n can be complete."""
        of_trajectories = log_likelihood_ratio(failed=self.failed_trajectories, scored=self.scored_trajectories, n=n)
        of_groups = log_likelihood_ratio(failed=self.num_failed, scored=self.num_scored, n=1)
        return max(of_trajectories, of_groups) >= -math.log(FALSE_ALARM)

    def are_hardly_any(self, target_valid_groups: int) -> bool:
        """Whether hardly a group ends within the round: twice as many as are wanted have been set aside instead."""
        of_groups = log_likelihood_ratio(failed=self.set_aside, scored=self.num_scored, n=1)
        return self.set_aside >= 2 * target_valid_groups and of_groups >= -math.log(FALSE_ALARM)


def failure_rate(complete_share: float, n: int) -> float:
    """The rate at which trajectories fail when that share of the groups of n is complete [0-1]."""
    return 1.0 - complete_share ** (1.0 / n)


def log_likelihood_ratio(*, failed: int, scored: int, n: int) -> float:
    """Of these counts, at the hopeless failure rate over the tolerable one."""
    tolerable, hopeless = failure_rate(TOLERABLE_COMPLETE_SHARE, n), failure_rate(HOPELESS_COMPLETE_SHARE, n)
    return failed * math.log(hopeless / tolerable) + scored * math.log((1.0 - hopeless) / (1.0 - tolerable))
