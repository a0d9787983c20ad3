"""A round that goes on while the trainer trains, and its pool: batches are handed over, and it stops only when it is
told to.

Engines have GPUs of their own then. A fresh group begins while those that have begun, and the batch that is trained
just now, are fewer than the over-sampling target, and while it can be trained in time: see `Deadlines`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ...core.ledger import LedgerError
from ...core.mix import ALL, Quota, RoundPart
from ...core.outcome import GroupOutcome, Verdict
from ...core.over_sampling import AvailableGroups
from ...core.pool import PromptPool
from ...core.round import Round, RoundSpec, RoundSummary
from ...core.round_groups import WaitingGroup
from ...core.stop_rules import StopRule
from .deadlines import Deadlines


class UntilStopped(StopRule):
    """Met when `stop` is called: of a round whose batches are handed over while it goes on."""

    def __init__(self) -> None:
        super().__init__(missing=1)

    def stop(self) -> None:
        self._missing = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingSpec(RoundSpec):
    """A round to open that hands batches over, or how much the open one may have under way from now on."""

    goes_on: ClassVar[bool] = True
    step: int  # whose batch is collected first
    max_staleness: int | None
    carried: tuple[tuple[str, int], ...] = ()  # valid groups of earlier rounds: (uid, oldest policy version)
    most_begun: int  # valid groups that are expected of those that have begun or are trained just now [groups]

    def make_rule(self, quota: Quota) -> UntilStopped:
        return UntilStopped()


class RollingRound(Round):
    """A round that goes on from step to step: it hands over a batch for each, and stops when it is told to.

    Args:
        oldest_version: that a token sampled from now on may have.
    """

    _spec: RollingSpec

    def __init__(self, spec: RollingSpec, *, oldest_version: int) -> None:
        self._deadlines = Deadlines(
            target_valid_groups=spec.parts[ALL].target_valid_groups, max_staleness=spec.max_staleness, step=spec.step
        )
        for uid, version in spec.carried:
            self._deadlines.begin(uid, version)
            self._deadlines.end(uid, is_valid=True)
        self._oldest_version = oldest_version
        self._in_training = 0  # groups
        super().__init__(spec)

    @property
    def has_batch(self) -> bool:
        """Whether a batch may be handed over now."""
        return not self.is_halted and self._deadlines.next_batch() is not None

    def _can_be_trained(self, part: RoundPart, begun: AvailableGroups) -> bool:
        available = replace(begun, certain=begun.certain + self._in_training)
        is_enough = available.expected_valid(part.quota.expected_share) >= self._spec.most_begun
        return not is_enough and self._deadlines.may_begin(self._oldest_version)

    def note_versions(self, *, oldest: int, newest: int) -> None:
        """Note the policy version of the oldest weights in an engine, and of the trainer's newest. A batch that was
        handed over is in training until the trainer has the weights that it makes.
        """
        self._oldest_version = max(self._oldest_version, oldest)
        if newest >= self._deadlines.step - 1:
            self._in_training = 0

    def resize(self, spec: RollingSpec) -> None:
        """How much may be under way from now on."""
        self._groups.resize(pool_size=spec.pool_size, most_unfinished=spec.most_unfinished)
        self._spec, self._parts[ALL].quota = spec, spec.parts[ALL]

    def add_groups(self, groups: Sequence[WaitingGroup]) -> None:
        for group in groups:
            if group.oldest_version is not None:
                self._deadlines.begin(group.prompt_uid, group.oldest_version)
        # One without tokens is as good as fresh, and has to find room as those do.
        super().add_groups([replace(group, has_begun=group.oldest_version is not None) for group in groups])

    def take(self, worker: int) -> str | None:
        uid = super().take(worker)
        if uid is not None and uid not in self._deadlines:
            self._deadlines.begin(uid, self._oldest_version)
        return uid

    def report(self, outcome: GroupOutcome) -> None:
        if outcome.prompt_uid in self._groups:
            self._deadlines.end(outcome.prompt_uid, is_valid=outcome.verdict is Verdict.VALID)
        super().report(outcome)

    def hand_over(self) -> RoundSummary:
        """Hand the next batch over, with all that has ended since the one before."""
        taken = self._deadlines.hand_over()
        self._in_training = len(taken)
        self._parts[ALL].valid -= len(taken)
        under_way = self.num_waiting + self.num_running
        part = replace(
            self.close(), never_started=(), taken_unreported=(), handed_over=tuple(taken), under_way=under_way
        )
        self._ended, self._start_order = [], []
        self._groups.forget_idle_max()
        return part

    def stop(self) -> None:
        """Nothing starts any more."""
        rule = self._parts[ALL].rule
        assert isinstance(rule, UntilStopped)
        rule.stop()
        self._update()


class RollingPool(PromptPool):
    """Accounts for batches that a round hands over, beside what it does for a round that is closed."""

    @property
    def carried_versions(self) -> tuple[tuple[str, int], ...]:
        """(uid, oldest policy version) of every group that is valid and not trained."""
        return tuple((carried.uid, carried.oldest_version) for carried in self._carried)

    def hand_over(self, summary: RoundSummary) -> RoundSummary:
        """Account for what has ended in a round that goes on, and train on what it hands over. As `settle`.

        Raises:
            LedgerError: if the round has other groups than the pool believes.
        """
        summary = self._take_ended(summary)
        if len(self._in_round) != summary.under_way:
            raise LedgerError(f"{summary.under_way} groups are in the round, {len(self._in_round)} were given to it")
        return replace(summary, trained_uids=self._train(summary.handed_over))
