"""The ledger by source: what becomes of the prompts of each data set of a mix, and how they are answered.

The pool tells what it does with each group (`PoolWatch`). Whenever the ledger is checked, the groups that are held are
counted by source, too: each source accounts for all its prompts, and the sources together are the ledger.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace

from ...core.ledger import Ledger, LedgerError
from ...core.outcome import JUDGED, GroupOutcome, Verdict
from ...core.pool import PoolWatch
from ...core.trajectory import PromptGroup

WAITING = "waiting"  # all that is held, whatever it has generated


@dataclass(slots=True, kw_only=True)
class Answered:
    """How a source's prompts were answered in a step, and what was trained of it."""

    valid: int = 0  # groups
    judged: int = 0  # groups
    answers: int = 0  # of judged groups [count]
    measured: int = 0  # of these, those that the filter's metric judged: none in a run without the filter [count]
    metric: float = 0.0  # sum over these
    answers_tok: int = 0
    trained_tok: int = 0
    trained_trajectories: int = 0
    stale_tok: int = 0  # sum over trained tokens of their staleness [versions x tokens]
    discarded_tok: int = 0

    def metrics(self) -> dict[str, float]:
        """Without those of which there is nothing in the step."""
        found: dict[str, float] = {}
        if self.judged:
            found["valid_share"] = self.valid / self.judged
        if self.measured:
            found["pass_rate"] = self.metric / self.measured
        if self.answers:
            found["response_length"] = self.answers_tok / self.answers
        if self.trained_trajectories:
            found["trained_length"] = self.trained_tok / self.trained_trajectories
        if self.trained_tok:
            found["staleness"] = self.stale_tok / self.trained_tok
        if self.trained_tok or self.discarded_tok:
            found["waste_ratio"] = self.discarded_tok / (self.discarded_tok + self.trained_tok)
        return found


TERMS = (*(one.name for one in fields(Ledger)), WAITING)
# A pass rate's metric is the filter's.
ANSWERED = ("valid_share", "pass_rate", "response_length", "trained_length", "staleness", "waste_ratio")
METRICS = (*TERMS, *ANSWERED)  # of each source


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountsState:
    """What a checkpoint keeps: the ledger of each source, and of groups that had ended before any was kept."""

    ledgers: dict[str, Ledger] = field(default_factory=dict)
    before: Ledger = field(default_factory=Ledger)


class Accounts(PoolWatch):
    """A ledger for each source, and what was seen of each in the step that goes on."""

    def __init__(self) -> None:
        self._ledgers: dict[str, Ledger] = {}
        self._before = Ledger()
        self._step: dict[str, Answered] = {}
        self._source_of: dict[str, str] = {}  # of the groups in the step's batch
        self._waiting: Counter[str] = Counter()  # groups, as the ledger was checked last

    # ---- what the pool tells ----

    def drawn(self, groups: Sequence[PromptGroup]) -> None:
        for source, count in _counted(groups).items():
            self._ledger(source).drawn += count

    def group_ended(self, group: PromptGroup, outcome: GroupOutcome) -> None:
        ledger, seen = self._ledger(group.source), self._seen(group.source)
        ledger.filtered += outcome.verdict is Verdict.FILTERED
        ledger.failed += outcome.verdict is Verdict.FAILED
        if outcome.verdict in JUDGED:
            seen.judged += 1
            seen.valid += outcome.verdict is Verdict.VALID
            seen.answers += len(outcome.response_lens_tok)
            seen.answers_tok += sum(outcome.response_lens_tok)
            seen.measured += len(outcome.metrics)
            seen.metric += sum(outcome.metrics)
        elif outcome.verdict is Verdict.FAILED:
            seen.discarded_tok += sum(outcome.response_lens_tok)

    def discarded(self, group: PromptGroup, tokens: int) -> None:
        self._seen(group.source).discarded_tok += tokens

    def trained(self, groups: Sequence[PromptGroup]) -> None:
        for group in groups:
            self._ledger(group.source).trained += 1
            self._seen(group.source).trained_trajectories += len(group.trajectories)
            self._source_of[group.uid] = group.source

    def retired(self, groups: Sequence[PromptGroup]) -> None:
        for source, count in _counted(groups).items():
            self._ledger(source).retired += count

    def check(self, held: Collection[PromptGroup], ledger: Ledger, *, deferred: int) -> None:
        """
        Raises:
            LedgerError: if the prompts of a source are not all accounted for, or the sources are not all there is.
        """
        if not self._ledgers and not self._before.drawn:
            self._begin(held, ledger, deferred)
        self._waiting = _counted(held)
        for source in {*self._ledgers, *self._waiting}:
            try:
                self._ledger(source).check(waiting=self._waiting[source], buffered=0)
            except LedgerError as error:
                raise LedgerError(f"source {source}: {error}") from None
        whole = replace(ledger, drawn=ledger.drawn - deferred)
        for term in (one.name for one in fields(Ledger)):
            parts = {source: getattr(own, term) for source, own in self._ledgers.items()}
            if getattr(self._before, term) + sum(parts.values()) != getattr(whole, term):
                raise LedgerError(f"sources do not add up: {term}={getattr(whole, term)}, by source {parts}")

    def _begin(self, held: Collection[PromptGroup], ledger: Ledger, deferred: int) -> None:
        """Go on from a checkpoint without accounts: what is held counts as drawn, what has ended has no source."""
        self._before = replace(ledger, drawn=ledger.drawn - deferred - len(held))
        self.drawn([*held])

    # ---- what the step tells ----

    def note_batch(self, groups: Mapping[str, Counter[int]]) -> None:
        """Take in the tokens of trained groups by their staleness [versions]; groups by their uids."""
        for uid, tokens in groups.items():
            seen = self._seen(self._source_of[uid])
            seen.trained_tok += tokens.total()
            seen.stale_tok += sum(staleness * count for staleness, count in tokens.items())

    def take(self) -> dict[str, dict[str, float]]:
        """End a step. Returns the metrics of each source, in order of name."""
        step, self._step, self._source_of = self._step, {}, {}
        return {
            source: {**asdict(own), WAITING: self._waiting[source], **step.get(source, Answered()).metrics()}
            for source, own in sorted(self._ledgers.items())
        }

    # ---- checkpoints ----

    def accounts(self) -> AccountsState:
        """What a checkpoint keeps."""
        ledgers = {source: replace(own) for source, own in self._ledgers.items()}
        return AccountsState(ledgers=ledgers, before=replace(self._before))

    def go_on(self, state: AccountsState) -> None:
        """From a checkpoint."""
        self._ledgers = {source: replace(own) for source, own in state.ledgers.items()}
        self._before = replace(state.before)

    def _ledger(self, source: str) -> Ledger:
        return self._ledgers.setdefault(source, Ledger())

    def _seen(self, source: str) -> Answered:
        return self._step.setdefault(source, Answered())


def _counted(groups: Iterable[PromptGroup]) -> Counter[str]:
    return Counter(group.source for group in groups)
