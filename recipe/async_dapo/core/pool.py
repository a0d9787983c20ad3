"""The trainer's side of the rollout: which prompt groups it holds between rounds, and what becomes of them.

    draw -> waiting --dispatch--> in the round --settle--> trained | carried | ended | waiting | buffered

`ended` are groups that were filtered or have failed. `carried` are valid groups beyond the B of a step:
they are trained first in the next one. `buffered` are groups that were interrupted and keep their tokens. Everything
else that was interrupted waits again, with the groups that are redrawn. A group that has become too stale, or cannot go
on, is retired, and its prompt waits again under a new uid. What waits again has the place that it
had in the queue, whether it had started and however far it had come: no prompt is overtaken for ever.

A source of prompts may hold some of them back (`training/source.py`). They are drawn for the ledger, and not here.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .ledger import Ledger
from .mix import Mix
from .outcome import JUDGED, CarriedGroup, GroupOutcome, Verdict
from .over_sampling import AvailableGroups
from .round import RoundSummary
from .staleness import StalenessLimit
from .stop_rules import StopRuleName, ending_of
from .trajectory import PromptGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """What the pool holds between rounds: with it, no drawn prompt and no kept token is lost."""

    waiting: tuple[PromptGroup, ...]
    buffered: tuple[PromptGroup, ...]
    carried: tuple[CarriedGroup, ...]
    ledger: Ledger


class PoolWatch:
    """Is notified of what the pool does with prompt groups: each term of the ledger, group by group. This one does
    nothing. Tokens that are thrown away have a call of their own, beside that for the group's end, or for its prompt's
    return to the queue.
    """

    def drawn(self, groups: Sequence[PromptGroup]) -> None:
        """They are new, drawn from the data or again for a retired group."""

    def group_ended(self, group: PromptGroup, outcome: GroupOutcome) -> None:
        """It has ended in a round: valid, filtered or failed. Groups are told of as they ended, so that what is known
        of a prompt with several in a round does not hang on their verdicts.
        """

    def discarded(self, group: PromptGroup, tokens: int) -> None:
        """So many generated tokens of it are thrown away; it starts again, or is retired."""

    def trained(self, groups: Sequence[PromptGroup]) -> None:
        """They are the batch of a step."""

    def retired(self, groups: Sequence[PromptGroup]) -> None:
        """They are given up, and still have what they have generated."""

    def check(self, held: Collection[PromptGroup], ledger: Ledger, *, deferred: int) -> None:
        """The ledger closes: see that the watch's own account does.

        Args:
            held: all groups of the pool.
            deferred: groups beyond these, that are drawn and held back.

        Raises:
            LedgerError: if it does not.
        """


def training_order(summary: RoundSummary, stop_rule: StopRuleName) -> list[GroupOutcome]:
    """The valid groups of a round, those to be trained on first in front."""
    valid = summary.ended(Verdict.VALID)
    if ending_of(stop_rule).trains_as_started:
        position = {uid: i for i, uid in enumerate(summary.start_order)}
        valid.sort(key=lambda outcome: position[outcome.prompt_uid])
    return valid


class PromptPool:
    """Prompt groups between rounds, and the ledger.

    Args:
        mix: how many groups to hold, and which valid ones make up a batch.
        mixes_versions: whether interrupted groups keep what they have generated, and go on under the next policy.
        stop_rule: decides the order in which valid groups are trained.
        staleness: how old trained tokens may be.
        new_uid: names a group whose prompt is tried again.
        watches: are notified of what becomes of groups.
    """

    def __init__(
        self,
        *,
        mix: Mix,
        mixes_versions: bool,
        stop_rule: StopRuleName,
        staleness: StalenessLimit,
        new_uid: Callable[[], str],
        watches: Collection[PoolWatch] = (),
    ) -> None:
        self._watches = watches
        self.mix = mix
        self._mixes_versions = mixes_versions
        self._stop_rule = stop_rule
        self._staleness = staleness
        self._new_uid = new_uid
        self._waiting: deque[PromptGroup] = deque()
        self._buffered: list[PromptGroup] = []
        self._carried: list[CarriedGroup] = []  # those of the oldest policy first
        self._in_round: dict[str, PromptGroup] = {}
        self._places: dict[str, int] = {}  # uid -> where it was among the groups of the last round
        self._unfit: frozenset[str] = frozenset()  # of a checkpoint: to be retired before the next round
        self._retired_tok = 0  # since a round was settled
        self.ledger = Ledger()

    @property
    def carried(self) -> Sequence[CarriedGroup]:
        """Valid groups that are not trained, those of the oldest policy first."""
        return tuple(self._carried)

    @property
    def carried_uids(self) -> tuple[str, ...]:
        return tuple(carried.uid for carried in self._carried)

    @property
    def held(self) -> Collection[PromptGroup]:
        """All groups, those of a round that goes on included."""
        carried = [carried.group for carried in self._carried]
        return [*self._waiting, *self._buffered, *self._in_round.values(), *carried]

    @property
    def buffered(self) -> Sequence[PromptGroup]:
        return tuple(self._buffered)

    @property
    def available(self) -> Mapping[str, AvailableGroups]:
        """Groups that can still be trained on, by their part of the mix."""
        part_of, unfinished = self.mix.part_of, [*self._waiting, *self._buffered, *self._in_round.values()]
        certain = Counter(part_of(carried.group) for carried in self._carried)
        certain.update(part_of(group) for group in unfinished if group.is_certain)
        still_open = Counter(part_of(group) for group in unfinished if not group.is_certain)
        return {part: AvailableGroups(certain=certain[part], open=still_open[part]) for part in certain | still_open}

    def missing_for_round(self) -> dict[str, int]:
        """How many to draw of each part before a round opens [groups]."""
        return self.mix.missing(self.available)

    def add_drawn(self, groups: Sequence[PromptGroup], *, held_back: int = 0) -> None:
        """Take in new prompts.

        Args:
            held_back: how many more the source holds back than before it was asked for these [groups].
        """
        self.ledger.drawn += len(groups) + held_back
        for watch in self._watches:
            watch.drawn(groups)
        self._waiting.extend(groups)

    def dispatch(self) -> list[PromptGroup]:
        """All available groups in order of start: resumed ones first, oldest and then longest, then waiting ones."""
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
        target = self.mix.over_sampling.target_valid_groups
        assert len(self._carried) >= target, "settled a round that has not reached its target"
        trained = self._train(self.mix.take(self._carried))
        assert len(trained) == target, "a mix has taken another number of groups than a batch has"
        return replace(summary, trained_uids=trained)

    def take_back(self, summary: RoundSummary, unfinished: Iterable[PromptGroup]) -> RoundSummary:
        """Account for a closed round, and choose nothing to train on. As `settle`."""
        self._places = {uid: place for place, uid in enumerate(self._in_round)}
        summary = self._take_ended(summary)
        redrawn, discarded_tok = [], 0
        for outcome in summary.ended(Verdict.REDRAWN):
            redrawn.append(group := self._in_round.pop(outcome.prompt_uid))
            group.restart()
            discarded_tok += self._discard(group, sum(outcome.response_lens_tok))
        requeued = self._take_back(summary, unfinished)
        lost = list(self._in_round.values())
        self._in_round.clear()
        discarded_tok += sum(self._discard(group, group.restart()) for group in requeued + lost)
        self._queue_again([*lost, *requeued, *redrawn])
        return replace(
            summary,
            requeued=len(requeued) + len(lost),
            lost_reports=len(lost),
            discarded_tok=summary.discarded_tok + discarded_tok,
        )

    def _train(self, uids: Iterable[str]) -> tuple[str, ...]:
        groups = self._take_carried(set(uids))
        self.ledger.trained += len(groups)
        for watch in self._watches:
            watch.trained([carried.group for carried in groups])
        return tuple(carried.uid for carried in groups)

    def _take_carried(self, uids: Collection[str]) -> list[CarriedGroup]:
        taken = [carried for carried in self._carried if carried.uid in uids]
        self._carried = [carried for carried in self._carried if carried.uid not in uids]
        return taken

    def check_ledger(self, *, deferred: int = 0) -> dict[str, int]:
        """All terms of the ledger; see `Ledger.check`. Groups of a round that goes on count as waiting."""
        terms = self.ledger.check(
            waiting=len(self._waiting) + len(self._in_round),
            buffered=len(self._buffered) + len(self._carried),
            deferred=deferred,
        )
        held = self.held
        for watch in self._watches:
            watch.check(held, self.ledger, deferred=deferred)
        return terms

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
        for outcome in summary.outcomes:
            if outcome.verdict in (*JUDGED, Verdict.FAILED):
                for watch in self._watches:
                    watch.group_ended(self._in_round[outcome.prompt_uid], outcome)
        for outcome in valid + filtered + failed:
            group = self._in_round.pop(outcome.prompt_uid)
            if outcome.verdict is Verdict.VALID:
                self._carried.append(CarriedGroup.of(group, outcome))
        self._carried.sort(key=lambda carried: carried.oldest_version)
        self.ledger.filtered += len(filtered)
        self.ledger.failed += len(failed)
        retired_tok, self._retired_tok = self._retired_tok, 0
        return replace(summary, resumed=resumed, discarded_tok=retired_tok)

    def _take_back(self, summary: RoundSummary, unfinished: Iterable[PromptGroup]) -> list[PromptGroup]:
        """Put interrupted groups into the buffer, and let those that never started wait. Returns those that are to
        start again.
        """
        requeued = []
        for group in unfinished:
            if self._in_round.pop(group.uid, None) is None:
                continue
            if self._mixes_versions and group.has_started:
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
        """Give up groups of which no token could be trained on any more, or that cannot go on; and those of a
        checkpoint that have begun, where none may go on under another policy, or that are unfit. Their prompts are
        queued again.

        Returns:
            Their uids.
        """
        limit, unfit, self._unfit = self._staleness, self._unfit, frozenset()
        groups = [c.group for c in self._carried if c.uid in unfit or limit.is_too_stale(c.newest_version, step)] + [
            g
            for g in self._buffered
            if not self._mixes_versions
            or g.is_lost
            or g.uid in unfit
            or limit.is_too_stale(max(g.versions(), default=None), step)
        ]
        uids = {group.uid: None for group in groups}
        self._retired_tok += sum(self._discard(one.group, one.generated_tok) for one in self._take_carried(uids))
        self._buffered = [group for group in self._buffered if group.uid not in uids]
        again = [group.again(self._new_uid(), step=step) for group in groups]
        self.ledger.retired += len(groups)
        self.ledger.drawn += len(again)
        for watch in self._watches:
            watch.retired(groups)
        for watch in self._watches:
            watch.drawn(again)
        places = [self._places.get(uid, -1) for uid in uids]  # those carried for longer come first
        self._places.update(zip((group.uid for group in again), places, strict=True))
        self._queue_again(again)
        self._retired_tok += sum(self._discard(group, group.restart()) for group in groups)
        return [*uids]

    def _discard(self, group: PromptGroup, tokens: int) -> int:
        """Returns the tokens."""
        if tokens:
            for watch in self._watches:
                watch.discarded(group, tokens)
        return tokens
