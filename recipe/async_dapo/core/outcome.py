"""How prompt groups end: their verdicts, a worker's report to the coordinator, and what is kept of valid ones.

A group whose trajectories all score the same has no gradient: DAPO's dynamic sampling (arXiv:2503.14476, eq. 11).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .trajectory import PromptGroup
from .users_errors import Cause

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedGroup:
    """A valid group that has not been trained on; its trajectories are in the store, the prompt is kept for a retry."""

    group: PromptGroup  # without tokens
    oldest_version: int
    newest_version: int
    generated_tok: int

    @classmethod
    def of(cls, group: PromptGroup, outcome: GroupOutcome) -> "CarriedGroup":
        """A group that has ended valid; it is emptied."""
        assert outcome.oldest_version is not None and outcome.newest_version is not None, "a valid group has tokens"
        group.restart()
        return cls(
            group=group,
            oldest_version=outcome.oldest_version,
            newest_version=outcome.newest_version,
            generated_tok=sum(outcome.response_lens_tok),
        )

    @property
    def uid(self) -> str:
        return self.group.uid


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
