"""How prompt groups end: their verdicts, a worker's report to the coordinator, and what failures have in common.

A group whose trajectories all score the same has no gradient: DAPO's dynamic sampling (arXiv:2503.14476, eq. 11).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .failures import Cause
from .trajectory import PromptGroup


class Verdict(StrEnum):
    """How a prompt group ended in a round."""

    VALID = "valid"  # complete, and its metric varies: it can be trained on
    FILTERED = "filtered"  # complete, but every trajectory has the same metric: no gradient
    SCREENED = "screened"  # its first samples have the same metric: the others were never started
    FAILED = "failed"  # a trajectory failed for good; `reason` says why
    SET_ASIDE = "set_aside"  # interrupted by the round's limits: continued in a later round
    REDRAWN = "redrawn"  # complete, but not of those that the stop rule waited for: its prompt starts again


JUDGED = (Verdict.VALID, Verdict.FILTERED, Verdict.SCREENED)  # every trajectory that was started has been scored


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome:
    """A worker's report that a prompt group has ended."""

    prompt_uid: str
    verdict: Verdict
    reason: str = ""
    cause: Cause | None = None  # that of its first trajectory that failed
    response_lens_tok: tuple[int, ...] = ()  # generated tokens of each trajectory; of a screened group, of its samples
    oldest_version: int | None = None  # of all generated tokens of the group
    newest_version: int | None = None
    scored: int = 0  # trajectories [count]
    failed: int = 0  # trajectories that failed for good; their siblings were interrupted, in a validation kept [count]
    metrics: tuple[float, ...] = ()  # of its trajectories, where it was judged by them
    is_kept: bool = False  # screening would have ended it, had it not been drawn to be kept
    answers: Any = None  # where some of them are, as drafts for the prompt's next visit; opaque to core
    answers_bytes: int = 0

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
        is_kept: bool = False,
    ) -> "GroupOutcome":
        """The report of a group with what it has generated so far; of a screened one without what never started."""
        versions = group.versions()
        counted = [one for one in group.trajectories if verdict is not Verdict.SCREENED or one.is_finished]
        return cls(
            prompt_uid=group.uid,
            verdict=verdict,
            reason=reason,
            cause=cause,
            response_lens_tok=tuple(trajectory.generated_tok for trajectory in counted),
            oldest_version=min(versions, default=None),
            newest_version=max(versions, default=None),
            scored=len(group.trajectories) - len(group.unfinished),
            failed=failed,
            metrics=tuple(metrics),
            is_kept=is_kept,
        )


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
    differ. Never reverts, if none fails.

    Raises:
        ValueError: if a metric is not finite.
    """
    known = list(metrics)
    for metric in known:
        if not math.isfinite(metric):
            raise ValueError(f"the metrics of a group must be finite numbers, got {metric}")
    return len(set(known)) > 1


def judge_group(metrics: Sequence[float]) -> Verdict:
    """Valid if the raw metric varies over the n trajectories of the group.

    Raises:
        ValueError: if a metric is not finite, or there is none.
    """
    if not metrics:
        raise ValueError("the metrics of a group must be finite numbers, got none")
    return Verdict.VALID if is_certain(metrics) else Verdict.FILTERED
