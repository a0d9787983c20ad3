"""What the prompt pool hands out and gets back: groups to run, and what a round came to."""

from dataclasses import dataclass, field

from .ledger import Ledger
from .outcome import GroupOutcome
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

    trained_uids: tuple[str, ...]  # exactly B
    surplus: int
    filtered: int
    screened: int
    failed: dict[str, int]  # reason -> groups
    requeued: int
    kept: int
    redrawn_uids: tuple[str, ...]  # complete, and queued again from the start; not among `requeued`
    discarded_tok: int
    lost_reports: int  # groups a worker neither finished nor gave back; re-queued


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """What the pool holds between rounds: with it, no drawn prompt and no kept token is lost."""

    waiting: tuple[PromptGroup, ...]
    buffered: tuple[PromptGroup, ...]
    carried: tuple[CarriedGroup, ...]
    deferred: tuple[PromptGroup, ...] = ()
    ledger: Ledger
