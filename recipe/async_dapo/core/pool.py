"""The trainer's side of the rollout: which prompt groups it holds between rounds, and what becomes of them.

    draw -> waiting --dispatch--> in the round --settle--> trained | carried | ended | waiting | buffered

`ended` are groups that were filtered or have failed. `carried` are valid groups beyond the B of a step:
they are trained first in the next one. `buffered` are groups that were interrupted and keep their tokens. Everything
else that was interrupted waits again, with the groups that are redrawn. A group that has become too stale, or cannot go
on, is retired, and its prompt waits again under a new uid. What waits again has the place that it
had in the queue, whether it had started and however far it had come: no prompt is overtaken for ever.

A source of prompts may hold some of them back (`training/source.py`). They are drawn for the ledger, and not here.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .ledger import Ledger, LedgerError
from .outcome import GroupOutcome, Verdict
from .over_sampling import AtHand, OverSampling
from .round import RoundSummary
from .staleness import StalenessLimit
from .stop_rules import StopRuleName, trains_as_started
from .trajectory import PromptGroup


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """What the pool holds between rounds: with it, no drawn prompt and no kept token is lost."""

    waiting: tuple[PromptGroup, ...]
    buffered: tuple[PromptGroup, ...]
    carried: tuple[CarriedGroup, ...]
    ledger: Ledger


def training_order(summary: RoundSummary, stop_rule: StopRuleName) -> list[GroupOutcome]:
    """The valid groups of a round, those to be trained on first in front."""
    valid = summary.ended(Verdict.VALID)
    if trains_as_started(stop_rule):
        position = {uid: i for i, uid in enumerate(summary.start_order)}
        valid.sort(key=lambda outcome: position[outcome.prompt_uid])
    return valid


class PromptPool:
    """Prompt groups between rounds, and the ledger.

    Args:
        over_sampling: how many groups to hold, and to draw at a time.
        keeps_tokens: whether interrupted groups keep what they have generated, and go on with it under the next policy.
        stop_rule: decides the order in which valid groups are trained.
        staleness: how old trained tokens may be.
        new_uid: names a group whose prompt is tried again.
    """

    def __init__(
        self,
        *,
        over_sampling: OverSampling,
        keeps_tokens: bool,
        stop_rule: StopRuleName,
        staleness: StalenessLimit,
        new_uid: Callable[[], str],
    ) -> None:
        self._over_sampling = over_sampling
        self._target = over_sampling.target_valid_groups
        self._keeps_tokens = keeps_tokens
        self._stop_rule = stop_rule
        self._staleness = staleness
        self._new_uid = new_uid
        self._waiting: deque[PromptGroup] = deque()
        self._buffered: list[PromptGroup] = []
        self._carried: list[CarriedGroup] = []  # those of the oldest policy first
        self._in_round: dict[str, PromptGroup] = {}
        self._places: dict[str, int] = {}  # uid -> where it was among the groups of the last round
        self._unfit: frozenset[str] = frozenset()  # of a checkpoint: to be retired before the next round
        self._retired_tok = self._lost_loops = 0  # since a round was settled
        self.ledger = Ledger()

    @property
    def num_carried(self) -> int:
        return len(self._carried)

    @property
    def carried_uids(self) -> tuple[str, ...]:
        return tuple(carried.uid for carried in self._carried)

    @property
    def carried_versions(self) -> tuple[tuple[str, int], ...]:
        """(uid, oldest policy version) of every group that is valid and not trained."""
        return tuple((carried.uid, carried.oldest_version) for carried in self._carried)

    @property
    def group_sizes(self) -> set[int]:
        """Trajectories of a group, over all groups that are held [count]."""
        unfinished = [*self._waiting, *self._buffered]
        carried = [one.group for one in self._carried]
        return {len(group.trajectories) for group in unfinished + carried}

    @property
    def buffered(self) -> Sequence[PromptGroup]:
        return tuple(self._buffered)

    @property
    def at_hand(self) -> AtHand:
        """Groups that can still be trained on."""
        unfinished = [*self._waiting, *self._buffered, *self._in_round.values()]
        certain = sum(group.is_certain for group in unfinished)
        return AtHand(certain=len(self._carried) + certain, open=len(unfinished) - certain)

    def missing_for_round(self) -> int:
        """How many to draw before a round opens [groups]."""
        return self._over_sampling.missing(self.at_hand)

    def add_drawn(self, groups: Sequence[PromptGroup], *, held_back: int = 0) -> None:
        """Take in new prompts.

        Args:
            held_back: how many more the source holds back than before it was asked for these [groups].
        """
        self.ledger.drawn += len(groups) + held_back
        self._waiting.extend(groups)

    @property
    def in_round(self) -> Mapping[str, PromptGroup]:
        """The groups of the round, by their uids."""
        return self._in_round

    def dispatch(self) -> list[PromptGroup]:
        """All groups at hand in order of start: resumed ones first, oldest and then longest, then waiting ones."""
        groups = [*sorted(self._buffered, key=lambda group: (-group.age, -group.generated_tok)), *self._waiting]
        self._buffered.clear()
        self._waiting.clear()
        self._in_round.update((group.uid, group) for group in groups)
        return groups

    def must_finish(self, step: int) -> frozenset[str]:
        """Groups of the round that would be too stale in the next step."""
        limit = self._staleness
        oldest = ((uid, min(group.versions(), default=None)) for uid, group in self._in_round.items())
        return frozenset(uid for uid, version in oldest if limit.must_finish(version, step))

    def settle(self, summary: RoundSummary, unfinished: Iterable[PromptGroup]) -> RoundSummary:
        """Account for a closed round and choose the B groups to train on.

        Args:
            summary: the coordinator's record of the round.
            unfinished: started groups that the workers gave back, with what they have generated.

        Returns:
            The record with what became of the groups.
        """
        summary = self.take_back(summary, unfinished)
        assert len(self._carried) >= self._target, "settled a round that has not reached its target"
        return replace(summary, trained_uids=self._train(self.carried_uids[: self._target]))

    def take_back(self, summary: RoundSummary, unfinished: Iterable[PromptGroup]) -> RoundSummary:
        """Account for a closed round, and choose nothing to train on. As `settle`."""
        self._places = {uid: place for place, uid in enumerate(self._in_round)}
        summary = self._take_ended(summary)
        redrawn = [self._in_round.pop(outcome.prompt_uid) for outcome in summary.ended(Verdict.REDRAWN)]
        redrawn_tok = sum(sum(outcome.response_lens_tok) for outcome in summary.ended(Verdict.REDRAWN))
        requeued = self._take_back(summary, unfinished)
        lost = list(self._in_round.values())
        self._in_round.clear()
        discarded_tok = redrawn_tok + sum(group.restart() for group in requeued + lost)
        for group in redrawn:
            group.restart()
        self._queue_again([*lost, *requeued, *redrawn])
        return replace(
            summary,
            requeued=len(requeued) + len(lost),
            lost_reports=len(lost),
            discarded_tok=summary.discarded_tok + discarded_tok,
        )

    def hand_over(self, summary: RoundSummary) -> RoundSummary:
        """Account for what has ended in a round that goes on, and train on what it hands over. As `settle`.

        Raises:
            LedgerError: if the round has other groups than the pool believes.
        """
        summary = self._take_ended(summary)
        if len(self._in_round) != summary.under_way:
            raise LedgerError(f"{summary.under_way} groups are in the round, {len(self._in_round)} were given to it")
        return replace(summary, trained_uids=self._train(summary.handed_over))

    def _train(self, uids: Iterable[str]) -> tuple[str, ...]:
        groups = self._take_carried(set(uids))
        self.ledger.trained += len(groups)
        return tuple(carried.uid for carried in groups)

    def _take_carried(self, uids: Collection[str]) -> list[CarriedGroup]:
        taken = [carried for carried in self._carried if carried.uid in uids]
        self._carried = [carried for carried in self._carried if carried.uid not in uids]
        return taken

    def check_ledger(self, *, deferred: int = 0) -> dict[str, int]:
        """All terms of the ledger; see `Ledger.check`. Groups of a round that goes on count as waiting."""
        return self.ledger.check(
            waiting=len(self._waiting) + len(self._in_round),
            buffered=len(self._buffered) + len(self._carried),
            deferred=deferred,
        )

    def state(self) -> PoolState:
        assert not self._in_round, "a checkpoint is taken between rounds"
        return PoolState(
            waiting=tuple(self._waiting),
            buffered=tuple(self._buffered),
            carried=tuple(self._carried),
            ledger=self.ledger,
        )

    def restore(self, state: PoolState, *, deferred: int = 0) -> None:
        """Go on from a checkpoint.

        Args:
            deferred: groups that the source holds back.

        Raises:
            LedgerError: if it does not account for every prompt.
        """
        self._waiting = deque(state.waiting)
        self._buffered = list(state.buffered)
        self._carried = list(state.carried)
        self.ledger = state.ledger
        self.check_ledger(deferred=deferred)

    def note_unfit(self, uids: Iterable[str]) -> None:
        """Groups of a checkpoint that this run could not train: they are retired before the next round."""
        self._unfit = frozenset(uids)

    def _take_ended(self, summary: RoundSummary) -> RoundSummary:
        """Carry the valid groups of a round, count those that cannot be trained on, and note what was retired."""
        resumed = sum(self._in_round[uid].age > 0 for uid in summary.start_order)
        valid, filtered = training_order(summary, self._stop_rule), summary.ended(Verdict.FILTERED)
        failed = summary.ended(Verdict.FAILED)
        self._carried += [CarriedGroup.of(self._in_round.pop(outcome.prompt_uid), outcome) for outcome in valid]
        self._carried.sort(key=lambda carried: carried.oldest_version)
        for outcome in filtered + failed:
            del self._in_round[outcome.prompt_uid]
        self.ledger.filtered += len(filtered)
        self.ledger.failed += len(failed)
        retired_tok, lost_loops, self._retired_tok, self._lost_loops = self._retired_tok, self._lost_loops, 0, 0
        return replace(summary, resumed=resumed, discarded_tok=retired_tok, lost_loops=lost_loops)

    def _take_back(self, summary: RoundSummary, unfinished: Iterable[PromptGroup]) -> list[PromptGroup]:
        """Put interrupted groups into the buffer, and let those that never started wait. Returns those that are to
        start again.
        """
        requeued = []
        for group in unfinished:
            if self._in_round.pop(group.uid, None) is None:
                continue
            if self._keeps_tokens and group.has_started:
                self._buffer(group)
            else:
                requeued.append(group)
        for uid in summary.never_started:
            group = self._in_round.pop(uid)
            if group.has_started:
                self._buffer(group)
            else:
                self._waiting.append(group)
        return requeued

    def _queue_again(self, groups: Iterable[PromptGroup]) -> None:
        """Let groups wait where they were in the last round."""
        last = len(self._places)
        self._waiting = deque(sorted([*groups, *self._waiting], key=lambda group: self._places.get(group.uid, last)))

    def _buffer(self, group: PromptGroup) -> None:
        for trajectory in group.unfinished:
            trajectory.age += 1
        self._buffered.append(group)

    def retire(self, step: int) -> list[str]:
        """Give up groups of which no token could be trained on any more, or whose agent loops are gone; and those of a
        checkpoint that have begun, where none may go on under another policy, or that are unfit. Their prompts are
        queued again.

        Returns:
            Their uids.
        """
        limit, unfit, self._unfit = self._staleness, self._unfit, frozenset()
        groups = [c.group for c in self._carried if c.uid in unfit or limit.is_too_stale(c.newest_version, step)] + [
            g
            for g in self._buffered
            if not self._keeps_tokens
            or g.lost_loops
            or g.uid in unfit
            or limit.is_too_stale(max(g.versions(), default=None), step)
        ]
        uids = {group.uid: None for group in groups}
        self._lost_loops += sum(group.lost_loops for group in groups)
        self._retired_tok += sum(carried.generated_tok for carried in self._take_carried(uids))
        self._buffered = [group for group in self._buffered if group.uid not in uids]
        again = [group.again(self._new_uid(), step=step) for group in groups]
        self.ledger.retired += len(groups)
        self.ledger.drawn += len(again)
        places = [self._places.get(uid, -1) for uid in uids]  # those carried for longer come first
        self._places.update(zip((group.uid for group in again), places, strict=True))
        self._queue_again(again)
        self._retired_tok += sum(group.restart() for group in groups)
        return [*uids]
