"""The trainer's side of the rollout: which prompt groups it holds between rounds, and what becomes of them.

    draw -> waiting --dispatch--> in the round --settle--> trained | carried | ended | waiting | buffered

`ended` are groups that were filtered or have failed. `carried` are valid groups beyond the B of a step:
they are trained first in the next one. `buffered` are groups that were interrupted and keep their tokens. Everything
else that was interrupted waits again, with the groups that are redrawn. A group that has become too stale, or whose
agent loops cannot go on, is retired, and its prompt waits again under a new uid. What waits again has the place that it
had in the queue, whether it had started and however far it had come: no prompt is overtaken for ever. Deferred prompts
wait until their step.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from .ledger import Ledger, LedgerError
from .outcome import GroupOutcome, Verdict
from .over_sampling import AtHand, OverSampling
from .round import RoundSummary
from .staleness import StalenessLimit
from .stop_rules import StopRuleName
from .trajectory import Attachment, PromptGroup


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
class Dispatch:
    """Groups to run in a round, in order of start."""

    groups: list[PromptGroup] = field(default_factory=list)
    must_finish: frozenset[str] = frozenset()  # would be too stale in the next step
    retired_uids: tuple[str, ...] = ()
    retired_tok: int = 0
    retired_attachments: tuple[Attachment, ...] = ()  # to be taken out of their engines
    lost_loops: int = 0  # agent loops of retired groups that could not go on
    resumed: int = 0

    def extended(self, later: "Dispatch") -> "Dispatch":
        """This and a later dispatch of the same round as one."""
        return Dispatch(
            groups=[*self.groups, *later.groups],
            must_finish=self.must_finish | later.must_finish,
            retired_uids=self.retired_uids + later.retired_uids,
            retired_tok=self.retired_tok + later.retired_tok,
            retired_attachments=self.retired_attachments + later.retired_attachments,
            lost_loops=self.lost_loops + later.lost_loops,
            resumed=self.resumed + later.resumed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What a round came to. Counts are groups unless the name says otherwise."""

    trained_uids: tuple[str, ...] = ()  # exactly B, if any
    filtered: int
    failed: dict[str, int]  # reason -> groups
    requeued: int = 0
    redrawn_uids: tuple[str, ...] = ()  # complete, and queued again from the start; not among `requeued`
    discarded_tok: int = 0
    lost_reports: int = 0  # groups a worker neither finished nor gave back; re-queued

    def __add__(self, later: "Settlement") -> "Settlement":
        """This and a later one as one."""
        return Settlement(
            trained_uids=self.trained_uids + later.trained_uids,
            filtered=self.filtered + later.filtered,
            failed=dict(Counter(self.failed) + Counter(later.failed)),
            requeued=self.requeued + later.requeued,
            redrawn_uids=self.redrawn_uids + later.redrawn_uids,
            discarded_tok=self.discarded_tok + later.discarded_tok,
            lost_reports=self.lost_reports + later.lost_reports,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """What the pool holds between rounds: with it, no drawn prompt and no kept token is lost."""

    waiting: tuple[PromptGroup, ...]
    buffered: tuple[PromptGroup, ...]
    carried: tuple[CarriedGroup, ...]
    deferred: tuple[PromptGroup, ...] = ()
    ledger: Ledger


class _CarriedGroups:
    """Valid groups beyond the B of a step, in the order in which they are trained: those of the oldest policy first."""

    def __init__(self, groups: Iterable[CarriedGroup] = ()) -> None:
        self._groups = list(groups)

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(carried.uid for carried in self._groups)

    @property
    def groups(self) -> tuple[CarriedGroup, ...]:
        return tuple(self._groups)

    def add(self, groups: Iterable[CarriedGroup]) -> None:
        self._groups.extend(groups)
        self._groups.sort(key=lambda carried: carried.oldest_version)  # stable: oldest policy first

    def take(self, count: int) -> list[CarriedGroup]:
        """The first `count`."""
        taken, self._groups = self._groups[:count], self._groups[count:]
        return taken

    def take_these(self, uids: Collection[str]) -> list[CarriedGroup]:
        taken = [carried for carried in self._groups if carried.uid in uids]
        self._groups = [carried for carried in self._groups if carried.uid not in uids]
        return taken

    def too_stale(self, limit: StalenessLimit, step: int) -> list[PromptGroup]:
        """Those of which no token could be trained on any more."""
        return [carried.group for carried in self._groups if limit.is_too_stale(carried.newest_version, step)]


class _DeferredPrompts:
    """Prompts that selection skipped. They wait until the step in `deferred_until`; if the data loader brings the same
    prompt again meanwhile, it is not counted twice.
    """

    def __init__(self, groups: Sequence[PromptGroup] = ()) -> None:
        self.groups = tuple(groups)

    def take_in(self, drawn: Sequence[PromptGroup], deferred: Sequence[PromptGroup]) -> tuple[list[PromptGroup], int]:
        """Sort the prompts of a draw. A prompt that an earlier visit deferred is the same prompt: it goes on waiting or
        is drawn now, and is counted once.

        Returns:
            The groups that are drawn now, and how many groups are new.
        """
        earlier = {group.key: group for group in self.groups}
        drawn_now = [earlier.pop(group.key, group) for group in drawn]
        later: dict[str, PromptGroup] = {}
        for group in deferred:
            if group.key not in earlier:
                later.setdefault(group.key, group)
        self.groups = (*earlier.values(), *later.values())
        return drawn_now, sum(now is group for now, group in zip(drawn_now, drawn, strict=True)) + len(later)

    def take_due(self, step: int) -> list[PromptGroup]:
        """Those whose step has come."""
        due = [group for group in self.groups if group.deferred_until <= step]
        self.groups = tuple(group for group in self.groups if group.deferred_until > step)
        return due


def training_order(summary: RoundSummary, stop_rule: StopRuleName) -> list[GroupOutcome]:
    """The valid groups of a round, those to be trained on first in front."""
    valid = [outcome for outcome in summary.outcomes if outcome.verdict is Verdict.VALID]
    if stop_rule is not StopRuleName.FIRST_COMPLETED:
        position = {uid: i for i, uid in enumerate(summary.start_order)}
        valid.sort(key=lambda outcome: position[outcome.prompt_uid])
    return valid


class PromptPool:
    """Prompt groups between rounds, and the ledger.

    Args:
        over_sampling: how many groups to hold, and to draw at a time.
        keeps_tokens: whether interrupted groups keep what they have generated.
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
        self._deferred = _DeferredPrompts()
        self._carried = _CarriedGroups()
        self._in_round: dict[str, PromptGroup] = {}
        self._places: dict[str, int] = {}  # uid -> where it was among the groups of the last round
        self.ledger = Ledger()

    @property
    def num_carried(self) -> int:
        return len(self._carried)

    @property
    def carried_uids(self) -> tuple[str, ...]:
        return self._carried.uids

    @property
    def carried_versions(self) -> tuple[tuple[str, int], ...]:
        """(uid, oldest policy version) of every group that is valid and not trained."""
        return tuple((carried.uid, carried.oldest_version) for carried in self._carried.groups)

    @property
    def group_sizes(self) -> set[int]:
        """Trajectories of a group, over all groups that are held [count]."""
        unfinished = [*self._waiting, *self._deferred.groups, *self._buffered]
        carried = [one.group for one in self._carried.groups]
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
        """Prompts to draw before a round opens [groups]."""
        return self._over_sampling.missing(self.at_hand)

    def add_drawn(self, groups: Sequence[PromptGroup], deferred: Sequence[PromptGroup] = ()) -> None:
        """Take in prompts of the data loader; deferred ones wait until the step that they name."""
        drawn_now, new = self._deferred.take_in(groups, deferred)
        self.ledger.drawn += new
        self._waiting.extend(drawn_now)

    def prompt_key(self, uid: str) -> str:
        """Of a group that is in the round."""
        return self._in_round[uid].key

    def dispatch(self, step: int, *, goes_on: bool = False) -> Dispatch:
        """All groups at hand in order of start: resumed ones first, oldest and then longest, then waiting ones.

        Args:
            goes_on: the round is open, and will hand over what is carried: nothing is retired.
        """
        retired = [] if goes_on else self._to_retire(step)
        lost_loops = sum(group.lost_loops for group in retired)
        attachments = tuple(attachment for group in retired for attachment in group.attachments())
        retired_tok = self._retire(retired, step)
        self._waiting.extend(self._deferred.take_due(step))
        resumed = sorted(self._buffered, key=lambda group: (-group.age, -group.generated_tok))
        groups = [*resumed, *self._waiting]
        self._buffered.clear()
        self._waiting.clear()
        self._in_round.update((group.uid, group) for group in groups)
        return Dispatch(
            groups=groups,
            must_finish=frozenset(
                group.uid for group in resumed if self._staleness.must_finish(min(group.versions(), default=None), step)
            ),
            retired_uids=tuple(group.uid for group in retired),
            retired_tok=retired_tok,
            retired_attachments=attachments,
            lost_loops=lost_loops,
            resumed=len(resumed),
        )

    def settle(self, summary: RoundSummary, unfinished: Iterable[PromptGroup]) -> Settlement:
        """Account for a closed round and choose the B groups to train on.

        Args:
            summary: the coordinator's record of the round.
            unfinished: started groups that the workers gave back, with what they have generated.
        """
        settlement = self.take_back(summary, unfinished)
        assert len(self._carried) >= self._target, "settled a round that has not reached its target"
        trained = self._train(self._carried.take(self._target))
        return replace(settlement, trained_uids=trained)

    def take_back(self, summary: RoundSummary, unfinished: Iterable[PromptGroup]) -> Settlement:
        """Account for a closed round, and choose nothing to train on. As `settle`."""
        self._places = {uid: place for place, uid in enumerate(self._in_round)}
        self._carry_valid(summary)
        ended, failed = self._count_ended(summary)
        redrawn, redrawn_tok = self._take_redrawn(summary)
        requeued, discarded_tok = self._take_back(summary, unfinished)
        discarded_tok += redrawn_tok
        lost = list(self._in_round.values())
        self._in_round.clear()
        for group in lost:
            discarded_tok += group.restart()
        self._queue_again([*lost, *requeued, *redrawn])
        return Settlement(
            filtered=ended[Verdict.FILTERED],
            failed=failed,
            requeued=len(requeued) + len(lost),
            redrawn_uids=tuple(group.uid for group in redrawn),
            discarded_tok=discarded_tok,
            lost_reports=len(lost),
        )

    def hand_over(self, summary: RoundSummary) -> Settlement:
        """Account for what has ended in a round that goes on, and train on what it hands over.

        Raises:
            LedgerError: if the round has other groups than the pool believes.
        """
        self._carry_valid(summary)
        ended, failed = self._count_ended(summary)
        if len(self._in_round) != summary.under_way:
            raise LedgerError(f"{summary.under_way} groups are in the round, {len(self._in_round)} were given to it")
        return Settlement(
            trained_uids=self._train(self._carried.take_these(set(summary.handed_over))),
            filtered=ended[Verdict.FILTERED],
            failed=failed,
        )

    def _train(self, groups: Sequence[CarriedGroup]) -> tuple[str, ...]:
        self.ledger.trained += len(groups)
        return tuple(carried.uid for carried in groups)

    def detach(self) -> list[Attachment]:
        """Let go of every request that is still in an engine. Returns them; their trajectories keep their tokens."""
        attachments = [attachment for group in self._buffered for attachment in group.attachments()]
        for group in self._buffered:
            group.detach()
        return attachments

    def check_ledger(self) -> dict[str, int]:
        """All terms of the ledger; see `Ledger.check`. Groups of a round that goes on count as waiting."""
        return self.ledger.check(
            waiting=len(self._waiting) + len(self._in_round),
            buffered=len(self._buffered) + len(self._carried),
            deferred=len(self._deferred.groups),
        )

    def state(self) -> PoolState:
        assert not self._in_round, "a checkpoint is taken between rounds"
        return PoolState(
            waiting=tuple(self._waiting),
            buffered=tuple(self._buffered),
            carried=self._carried.groups,
            deferred=self._deferred.groups,
            ledger=self.ledger,
        )

    def restore(self, state: PoolState) -> None:
        """Go on from a checkpoint; the engines hold nothing of it.

        Raises:
            LedgerError: if it does not account for every prompt.
        """
        self._waiting = deque(state.waiting)
        self._buffered = list(state.buffered)
        self._carried = _CarriedGroups(state.carried)
        self._deferred = _DeferredPrompts(state.deferred)
        self.ledger = state.ledger
        self.detach()
        self.check_ledger()

    def _carry_valid(self, summary: RoundSummary) -> None:
        valid = training_order(summary, self._stop_rule)
        self._carried.add(CarriedGroup.of(self._in_round.pop(outcome.prompt_uid), outcome) for outcome in valid)

    def _count_ended(self, summary: RoundSummary) -> tuple[Counter[Verdict], dict[str, int]]:
        """How groups have ended that cannot be trained on, and why those failed."""
        gone = [o for o in summary.outcomes if o.verdict in (Verdict.FILTERED, Verdict.FAILED)]
        for outcome in gone:
            del self._in_round[outcome.prompt_uid]
        ended = Counter(outcome.verdict for outcome in gone)
        self.ledger.filtered += ended[Verdict.FILTERED]
        self.ledger.failed += ended[Verdict.FAILED]
        return ended, dict(Counter(outcome.reason for outcome in gone if outcome.verdict is Verdict.FAILED))

    def _take_redrawn(self, summary: RoundSummary) -> tuple[list[PromptGroup], int]:
        """Groups that have ended and start again all the same, emptied, and the tokens that are lost with them."""
        outcomes = [outcome for outcome in summary.outcomes if outcome.verdict is Verdict.REDRAWN]
        groups = [self._in_round.pop(outcome.prompt_uid) for outcome in outcomes]
        for group in groups:
            group.restart()
        return groups, sum(sum(outcome.response_lens_tok) for outcome in outcomes)

    def _take_back(self, summary: RoundSummary, unfinished: Iterable[PromptGroup]) -> tuple[list[PromptGroup], int]:
        """Put interrupted groups into the buffer, and let those that never started wait.

        Returns:
            Groups that are to start again, and the tokens that are lost with them.
        """
        requeued, discarded_tok = [], 0
        for group in unfinished:
            if self._in_round.pop(group.uid, None) is None:
                continue
            if self._keeps_tokens and group.has_started:
                self._buffer(group)
            else:
                discarded_tok += group.restart()
                requeued.append(group)
        for uid in summary.never_started:
            group = self._in_round.pop(uid)
            if group.has_started:
                self._buffer(group)
            else:
                self._waiting.append(group)
        return requeued, discarded_tok

    def _queue_again(self, groups: Iterable[PromptGroup]) -> None:
        """Let groups wait where they were in the last round."""
        last = len(self._places)
        self._waiting = deque(sorted([*groups, *self._waiting], key=lambda group: self._places.get(group.uid, last)))

    def _buffer(self, group: PromptGroup) -> None:
        for trajectory in group.unfinished:
            trajectory.age += 1
        self._buffered.append(group)

    def _to_retire(self, step: int) -> list[PromptGroup]:
        """Groups of which no token could be trained on any more, or whose agent loops are gone."""
        limit = self._staleness
        buffered = [
            g for g in self._buffered if g.lost_loops or limit.is_too_stale(max(g.versions(), default=None), step)
        ]
        return self._carried.too_stale(limit, step) + buffered

    def _retire(self, groups: list[PromptGroup], step: int) -> int:
        """Give groups up, and queue their prompts again. Returns the tokens that are discarded."""
        uids = {group.uid for group in groups}
        lost_tok = sum(carried.generated_tok for carried in self._carried.take_these(uids))
        self._buffered = [group for group in self._buffered if group.uid not in uids]
        again = [group.again(self._new_uid(), step=step) for group in groups]
        self.ledger.retired += len(groups)
        self.ledger.drawn += len(again)
        places = [self._places.get(group.uid, -1) for group in groups]  # those carried for longer come first
        self._places.update(zip((group.uid for group in again), places, strict=True))
        self._queue_again(again)
        return lost_tok + sum(group.restart() for group in groups)
