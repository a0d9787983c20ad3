"""The prompt groups of a validation on a worker: every trajectory runs to its end; one that failed is left out, and the
others of its group go on.
"""

import logging
from typing import Any

from ..core.outcome import GroupOutcome, Verdict
from ..core.trajectory import PromptGroup
from ..core.users_errors import Cause, KnownPlaces, TrajectoryFailed
from .group_rollout import GroupRollout, WorkerReport

logger = logging.getLogger(__name__)


class ValidationRollout(GroupRollout):
    """Runs groups whose answers are scored and not trained on: none is judged, and none waits for a later round."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_tokens_per_round = None
        self._logged = KnownPlaces()
        self._left_out: dict[str, list[TrajectoryFailed]] = {}  # by group

    def take_report(self) -> WorkerReport:
        """Calls that go on over the stop are of the training round before: the next one reports them."""
        report, self._report = self._report, WorkerReport()
        return report

    def _fail(self, group: PromptGroup, reason: str, cause: Cause) -> None:
        failure = TrajectoryFailed(reason, cause)
        self._left_out.setdefault(group.uid, []).append(failure)
        level = logging.WARNING if self._logged.is_new(cause) else logging.DEBUG
        logger.log(level, "a trajectory of validation prompt %s is left out: %s", group.uid, failure)

    def _note_certain(self, group: PromptGroup) -> None:
        """Nothing waits for that."""

    def _outcome(self, group: PromptGroup) -> GroupOutcome:
        failures = self._left_out.pop(group.uid, [])
        if not failures:
            return GroupOutcome.of(group, Verdict.VALID)
        first = failures[0]
        return GroupOutcome.of(group, Verdict.VALID, reason=first.reason, cause=first.cause, failed=len(failures))
