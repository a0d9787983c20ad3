"""The trainer's side of the rollout: which prompt groups it holds between rounds, and what becomes of them.

    draw -> waiting --open_round--> in the round --settle--> trained | carried | filtered | failed | waiting | buffered

`carried` are valid groups beyond the B of a step: they are trained first in the next one. `buffered` are groups that
were interrupted and keep their tokens (strategy `partial`). Everything else that was interrupted waits again, in front.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .ledger import Ledger
from .round import RoundSummary
from .stop_rules import StopRuleName
from .trajectory import PromptGroup, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What a round came to. Counts are groups unless the name says otherwise."""

    trained_uids: tuple[str, ...]  # exactly B
    surplus: int
    filtered: int
    failed: dict[str, int]  # reason -> groups
    requeued: int
    kept: int
    discarded_tok: int
    lost_reports: int  # groups a worker neither finished nor gave back; re-queued


class PromptPool:
    """Args:
    target_valid_groups: B, valid groups that a step trains on [groups].
    over_sampling_batch_size: groups to hold at the start of a round, and to draw at a time [groups]. Larger than B:
        over-sampling. Smaller: rounds are filled at that granularity until B can be reached (APRIL's semantics).
    keeps_tokens: whether interrupted groups keep what they have generated.
    stop_rule: decides the order in which valid groups are trained.
    """

    def __init__(
        self,
        *,
        target_valid_groups: int,
        over_sampling_batch_size: int,
        keeps_tokens: bool,
        stop_rule: StopRuleName,
    ) -> None:
        self._target = target_valid_groups
        self._granularity = over_sampling_batch_size
        self._keeps_tokens = keeps_tokens
        self._stop_rule = stop_rule
        self._waiting: deque[PromptGroup] = deque()
        self._buffered: list[PromptGroup] = []
        self._carried: list[str] = []
        self._in_round: dict[str, PromptGroup] = {}
        self.ledger = Ledger()

    @property
    def num_carried(self) -> int:
        return len(self._carried)

    @property
    def carried_uids(self) -> tuple[str, ...]:
        return tuple(self._carried)

    @property
    def num_held(self) -> int:
        """Groups that can still be trained on [groups]."""
        return len(self._waiting) + len(self._buffered) + len(self._carried) + len(self._in_round)

    def missing_for_round(self) -> int:
        """Prompts to draw before a round opens [groups]."""
        chunks = -(-self._target // self._granularity)
        return max(0, chunks * self._granularity - self.num_held)

    @property
    def refill_size(self) -> int:
        """Prompts to draw when a round can no longer reach its target [groups]."""
        return self._granularity

    def add_drawn(self, groups: Sequence[PromptGroup]) -> None:
        self.ledger.drawn += len(groups)
        self._waiting.extend(groups)

    def dispatch(self) -> list[PromptGroup]:
        """All groups at hand in order of start: resumed ones first, oldest and then longest, then waiting ones."""
        resumed = sorted(self._buffered, key=lambda group: (-group.age, -group.generated_tok))
        groups = [*resumed, *self._waiting]
        self._buffered.clear()
        self._waiting.clear()
        self._in_round.update((group.uid, group) for group in groups)
        return groups

    def settle(self, summary: RoundSummary, unfinished: Iterable[PromptGroup]) -> Settlement:
        """Account for a closed round and choose the B groups to train on.

        Args:
            summary: the coordinator's record of the round.
            unfinished: started groups that the workers gave back, with what they have generated.
        """
        self._carried.extend(self._claim_valid(summary))
        filtered, failed = self._count_ended(summary)
        requeued, kept, discarded_tok = self._take_back(summary, unfinished)
        lost = list(self._in_round.values())
        self._in_round.clear()
        for group in lost:
            group.restart()
        self._waiting.extendleft(reversed(lost))
        assert len(self._carried) >= self._target, "settled a round that has not reached its target"
        trained, self._carried = self._carried[: self._target], self._carried[self._target :]
        self.ledger.trained += len(trained)
        return Settlement(
            trained_uids=tuple(trained),
            surplus=len(self._carried),
            filtered=filtered,
            failed=failed,
            requeued=requeued + len(lost),
            kept=kept,
            discarded_tok=discarded_tok,
            lost_reports=len(lost),
        )

    def check_ledger(self) -> dict[str, int]:
        """All terms of the ledger; see `Ledger.check`."""
        assert not self._in_round, "the ledger is checked between rounds"
        return self.ledger.check(waiting=len(self._waiting), buffered=len(self._buffered) + len(self._carried))

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to go on without losing a drawn prompt."""
        assert not self._in_round, "a checkpoint is taken between rounds"
        return {
            "waiting": list(self._waiting),
            "buffered": list(self._buffered),
            "carried": list(self._carried),
            "ledger": self.ledger,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._waiting = deque(state["waiting"])
        self._buffered = list(state["buffered"])
        self._carried = list(state["carried"])
        self.ledger = state["ledger"]
        self.check_ledger()

    def _claim_valid(self, summary: RoundSummary) -> list[str]:
        valid = [o.prompt_uid for o in summary.outcomes if o.verdict is Verdict.VALID]
        if self._stop_rule is not StopRuleName.FIRST_COMPLETED:
            position = {uid: i for i, uid in enumerate(summary.start_order)}
            valid.sort(key=position.__getitem__)
        for uid in valid:
            del self._in_round[uid]
        return valid

    def _count_ended(self, summary: RoundSummary) -> tuple[int, dict[str, int]]:
        failed: dict[str, int] = {}
        filtered = 0
        for outcome in summary.outcomes:
            if outcome.verdict is Verdict.FILTERED:
                filtered += 1
                del self._in_round[outcome.prompt_uid]
            elif outcome.verdict is Verdict.FAILED:
                failed[outcome.reason] = failed.get(outcome.reason, 0) + 1
                del self._in_round[outcome.prompt_uid]
        self.ledger.filtered += filtered
        self.ledger.failed += sum(failed.values())
        return filtered, failed

    def _take_back(self, summary: RoundSummary, unfinished: Iterable[PromptGroup]) -> tuple[int, int, int]:
        """Put interrupted groups into the buffer, or in front of those that never started."""
        requeued, kept, discarded_tok = [], 0, 0
        for group in unfinished:
            if self._in_round.pop(group.uid, None) is None:
                continue
            if self._keeps_tokens and group.has_started:
                for trajectory in group.unfinished:
                    trajectory.age += 1
                self._buffered.append(group)
                kept += 1
            else:
                discarded_tok += group.restart()
                requeued.append(group)
        position = {uid: i for i, uid in enumerate(summary.start_order)}
        requeued.sort(key=lambda group: position.get(group.uid, len(position)))
        never_started = [self._in_round.pop(uid) for uid in summary.never_started]
        self._waiting.extend([*requeued, *never_started])
        return len(requeued), kept, discarded_tok
