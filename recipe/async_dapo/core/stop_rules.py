"""When a round has enough: the rule that turns reports of finished groups into one stop.

`first_completed`  B valid groups, whichever finish first. Fast, and biased to short answers: a long group is cancelled
                   again and again while short ones are trained on.
`fifo`             B valid groups among a prefix of the start order that has finished whole (MiMo, arXiv:2505.07608):
                   which groups are trained does not depend on how long they took. Where interrupted ones start
                   again (`discard`), so do those that have ended beyond the prefix: their samples are the shorter ones.
`drain`            B valid groups, then nothing new starts and everything running is awaited. Unbiased and slow.

A new rule is a name here, a class that is notified of starts and ends, its case in `rule_of` and `ending_of` (the type
checker misses it), and what users read: the comment of `async_dapo.stop_rule` in the yaml, and
`docs/tuning.md`. Whose default it is, and what it does not go with, is in `config/reading.py`; `extensions/separate`
refuses it until its rounds that go on know it. No more is needed: the planner tries every name, and so do the
properties of rounds and pools; what each waits for is in `test_round.py`, and `test_refusals.py` spells the names.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from .outcome import Verdict


class StopRuleName(StrEnum):
    FIRST_COMPLETED = "first_completed"
    FIFO = "fifo"
    DRAIN = "drain"


class StopRule:
    """A rule that is notified of every start and end of a group. This one counts none.

    Args:
        missing: valid groups that the step still needs.
    """

    def __init__(self, missing: int) -> None:
        self._missing = missing

    @property
    def is_met(self) -> bool:
        """Never reverts to False."""
        return self._missing <= 0

    def on_start(self, uid: str) -> None:
        """A group has started."""

    def on_end(self, uid: str, verdict: Verdict) -> None:
        """A group has ended."""

    def has_counted(self, uid: str) -> bool:
        """Whether this ended group is one of those that the rule waited for, rather than one of those behind them."""
        return True


class CompletionOrder(StopRule):
    """Met with the B-th valid group in order of completion."""

    def on_end(self, uid: str, verdict: Verdict) -> None:
        if verdict is Verdict.VALID:
            self._missing -= 1


class StartOrder(StopRule):
    """Met when B valid groups have ended and so has every group that was started before them."""

    def __init__(self, missing: int) -> None:
        super().__init__(missing)
        self._started: deque[str] = deque()  # from the oldest group that still runs
        self._ended: dict[str, Verdict] = {}  # behind the prefix

    def on_start(self, uid: str) -> None:
        self._started.append(uid)

    def on_end(self, uid: str, verdict: Verdict) -> None:
        self._ended[uid] = verdict
        while self._started and self._started[0] in self._ended and not self.is_met:
            if self._ended.pop(self._started.popleft()) is Verdict.VALID:
                self._missing -= 1

    def has_counted(self, uid: str) -> bool:
        return uid not in self._ended


def rule_of(name: StopRuleName | None, missing: int) -> StopRule:
    """
    Args:
        name: None: a rule that is never met.
        missing: valid groups that the step still needs.
    """
    match name:
        case None:
            return StopRule(missing=1)
        case StopRuleName.FIRST_COMPLETED | StopRuleName.DRAIN:  # which differ in what follows: `ending_of`
            return CompletionOrder(missing)
        case StopRuleName.FIFO:
            return StartOrder(missing)
        case _:
            assert_never(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What follows when a rule is met.

    Attributes:
        trains_as_started: valid groups are trained in the order in which they started, not in that in which they ended.
        drains: groups that run are awaited, rather than interrupted.
        draws_again: where no tokens are kept, groups for which the rule did not wait are generated again, complete or
            not: to keep those that are complete, and draw only the others again, would prefer short answers.
    """

    trains_as_started: bool = False
    drains: bool = False
    draws_again: bool = False


def ending_of(name: StopRuleName) -> Ending:
    match name:
        case StopRuleName.FIRST_COMPLETED:
            return Ending()
        case StopRuleName.FIFO:
            return Ending(trains_as_started=True, draws_again=True)
        case StopRuleName.DRAIN:
            return Ending(trains_as_started=True, drains=True)
        case _:
            assert_never(name)
