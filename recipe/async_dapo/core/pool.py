"""The trainer's side of the rollout: which prompt groups it holds between rounds, and what becomes of them.

    draw -> waiting --dispatch--> in the round --settle--> trained | carried | ended | waiting | buffered

`ended` are groups that were filtered, screened out or have failed. `carried` are valid groups beyond the B of a step:
they are trained first in the next one. `buffered` are groups that were interrupted and keep their tokens. Everything
else that was interrupted waits again, in front, with the groups that are redrawn. A group that has become too stale, or
whose agent loops cannot go on, is retired, and its prompt waits again under a new uid. Deferred prompts wait until
their step.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from .carried_groups import CarriedGroups
from .deferred_prompts import DeferredPrompts
from .ledger import Ledger
from .outcome import Verdict
from .over_sampling import AtHand, OverSampling
from .pool_records import CarriedGroup, Dispatch, PoolState, Settlement
from .round import RoundSummary
from .staleness import StalenessLimit
from .stop_rules import StopRuleName
from .training_order import training_order
from .trajectory import Attachment, PromptGroup


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
        self._deferred = DeferredPrompts()
        self._carried = CarriedGroups()
        self._in_round: dict[str, PromptGroup] = {}
        self.ledger = Ledger()

    @property
    def num_carried(self) -> int:
        return len(self._carried)

    @property
    def carried_uids(self) -> tuple[str, ...]:
        return self._carried.uids

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

    def dispatch(self, step: int) -> Dispatch:
        """All groups at hand in order of start: resumed ones first, oldest and then longest, then waiting ones."""
        retired = self._to_retire(step)
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
        self._carry_valid(summary)
        ended, failed = self._count_ended(summary)
        redrawn, redrawn_tok = self._take_redrawn(summary)
        requeued, kept, discarded_tok = self._take_back(summary, unfinished, redrawn)
        discarded_tok += redrawn_tok
        lost = list(self._in_round.values())
        self._in_round.clear()
        for group in lost:
            discarded_tok += group.restart()
        self._waiting.extendleft(reversed(lost))
        assert len(self._carried) >= self._target, "settled a round that has not reached its target"
        trained = self._carried.take(self._target)
        self.ledger.trained += len(trained)
        return Settlement(
            trained_uids=tuple(carried.uid for carried in trained),
            surplus=len(self._carried),
            filtered=ended[Verdict.FILTERED],
            screened=ended[Verdict.SCREENED],
            failed=failed,
            requeued=requeued + len(lost),
            kept=kept,
            redrawn_uids=tuple(group.uid for group in redrawn),
            discarded_tok=discarded_tok,
            lost_reports=len(lost),
        )

    def detach(self) -> list[Attachment]:
        """Let go of every request that is still in an engine. Returns them; their trajectories keep their tokens."""
        attachments = [attachment for group in self._buffered for attachment in group.attachments()]
        for group in self._buffered:
            group.detach()
        return attachments

    def check_ledger(self) -> dict[str, int]:
        """All terms of the ledger; see `Ledger.check`."""
        assert not self._in_round, "the ledger is checked between rounds"
        return self.ledger.check(
            waiting=len(self._waiting),
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
        self._carried = CarriedGroups(state.carried)
        self._deferred = DeferredPrompts(state.deferred)
        self.ledger = state.ledger
        self.detach()
        self.check_ledger()

    def _carry_valid(self, summary: RoundSummary) -> None:
        valid = training_order(summary, self._stop_rule)
        self._carried.add(CarriedGroup.of(self._in_round.pop(outcome.prompt_uid), outcome) for outcome in valid)

    def _count_ended(self, summary: RoundSummary) -> tuple[Counter[Verdict], dict[str, int]]:
        """How groups have ended that cannot be trained on, and why those failed."""
        gone = [o for o in summary.outcomes if o.verdict in (Verdict.FILTERED, Verdict.SCREENED, Verdict.FAILED)]
        for outcome in gone:
            del self._in_round[outcome.prompt_uid]
        ended = Counter(outcome.verdict for outcome in gone)
        self.ledger.filtered += ended[Verdict.FILTERED]
        self.ledger.screened += ended[Verdict.SCREENED]
        self.ledger.failed += ended[Verdict.FAILED]
        return ended, dict(Counter(outcome.reason for outcome in gone if outcome.verdict is Verdict.FAILED))

    def _take_redrawn(self, summary: RoundSummary) -> tuple[list[PromptGroup], int]:
        """Groups that have ended and start again all the same, emptied, and the tokens that are lost with them."""
        outcomes = [outcome for outcome in summary.outcomes if outcome.verdict is Verdict.REDRAWN]
        groups = [self._in_round.pop(outcome.prompt_uid) for outcome in outcomes]
        for group in groups:
            group.restart()
        return groups, sum(sum(outcome.response_lens_tok) for outcome in outcomes)

    def _take_back(
        self, summary: RoundSummary, unfinished: Iterable[PromptGroup], redrawn: Sequence[PromptGroup]
    ) -> tuple[int, int, int]:
        """Put interrupted groups into the buffer, or in front of those that never started, with those to draw again."""
        requeued, kept, discarded_tok = [], 0, 0
        for group in unfinished:
            if self._in_round.pop(group.uid, None) is None:
                continue
            if self._keeps_tokens and group.has_started:
                self._buffer(group)
                kept += 1
            else:
                discarded_tok += group.restart()
                requeued.append(group)
        position = {uid: i for i, uid in enumerate(summary.start_order)}
        self._waiting.extend(sorted([*requeued, *redrawn], key=lambda group: position[group.uid]))
        for uid in summary.never_started:
            group = self._in_round.pop(uid)
            if group.has_started:
                self._buffer(group)
            else:
                self._waiting.append(group)
        return len(requeued), kept, discarded_tok

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
        """Give groups up, and queue their prompts again, in front. Returns the tokens thrown away."""
        uids = {group.uid for group in groups}
        lost_tok = self._carried.give_up(uids)
        self._buffered = [group for group in self._buffered if group.uid not in uids]
        again = [group.again(self._new_uid(), step=step) for group in groups]
        self.ledger.retired += len(groups)
        self.ledger.drawn += len(again)
        self._waiting.extendleft(reversed(again))
        return lost_tok + sum(group.restart() for group in groups)
