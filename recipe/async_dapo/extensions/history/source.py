"""`async_dapo.selection.by=history`: prompts whose answers would all be alike are drawn less often.

A prompt is skipped with the probability that all its answers would be alike, less an exploration floor (as GRESO,
arXiv:2506.02177, skips by streaks of such groups). A prompt that was never visited is not skipped. What is skipped is
deferred: at each visit of the data loader it may be drawn after all, and after a stated number of steps it is, whatever
its history says.

Where groups that were interrupted start again, the longest answers start first: fewer are interrupted. That is an order
of what is drawn together, and changes nothing of what is drawn.
"""

from dataclasses import dataclass
from hashlib import blake2b
from math import ceil
from typing import TYPE_CHECKING

from ...config.options import AsyncDAPOConfig
from ...config.values import SelectBy
from ...core.mix import ALL, Mix
from ...core.outcome import GroupOutcome
from ...core.over_sampling import OverSampling
from ...core.staleness import VersionShares
from ...core.trajectory import PromptGroup
from ...rollout.manager import RoundRecord
from ...training.checkpoints import from_bytes, to_bytes
from ...training.source import Source
from .prompt_history import PassCount, PromptHistory

if TYPE_CHECKING:
    from ...training.run_trainer import RunTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """A prompt that was skipped."""

    group: PromptGroup
    until: int  # step from which it is drawn before others


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryState:
    """What a checkpoint keeps."""

    counts: dict[str, PassCount]
    deferred: tuple[Deferred, ...]  # in order of deferral


class HistorySource(Source):
    """Draws from another source, and holds back what its history expects to teach nothing.

    Args:
        options: of the run. One that goes on from a checkpoint, and selects by no history now, skips nothing, and draws
            what was deferred when its time has come.
        source: whose prompts these are.
    """

    def __init__(self, options: AsyncDAPOConfig, source: Source) -> None:
        self._selection = options.selection
        self._is_on = options.selection.by is SelectBy.HISTORY
        self._longest_first = options.draws_again
        self._source = source
        self.history = PromptHistory(options.selection.forgetting)
        self._deferred: dict[str, Deferred] = {}  # by the prompts' names
        self._skipped = 0  # since the last batch

    def mix(self, over_sampling: OverSampling) -> Mix:
        return self._source.mix(over_sampling)

    def begin(self, trainer: "RunTrainer") -> None:
        self._source.begin(trainer)

    @property
    def held(self) -> int:
        return len(self._deferred) + self._source.held

    def draw(self, count: int, step: int, part: str = ALL) -> list[PromptGroup]:
        """Those whose time has come, and further ones; see `most_looked_at`."""
        due = [one.group for one in self._deferred.values() if one.until <= step]
        groups = [group for group in due if part in (ALL, group.source)][:count]
        for group in groups:
            del self._deferred[group.key]
        left = self.most_looked_at(count - len(groups))
        while missing := count - len(groups):
            for group in self._source.draw(missing, step, part):
                if count - len(groups) < left and self.skips(group):
                    self._defer(group, step)
                else:
                    groups.append(self._as_deferred(group))
                left -= 1
        return self.history.longest_first(groups) if self._longest_first else groups

    def most_looked_at(self, count: int) -> int:
        """Prompts that are looked at, at most, to draw `count`; the last of them are drawn whatever they are."""
        return ceil(count / self._selection.exploration) if self._is_on else count

    def skips(self, group: PromptGroup) -> bool:
        """Whether a fresh group is to be deferred: a draw by the hash of its uid, the same whenever it is asked."""
        known = self.history.of(group.key)
        if not self._is_on or known is None:
            return False
        drawn = int.from_bytes(blake2b(group.uid.encode(), digest_size=8, person=b"selection").digest())
        return drawn < (1 - self._selection.exploration) * known.alike_share(len(group.trajectories)) * 2**64

    def _defer(self, group: PromptGroup, step: int) -> None:
        """A prompt that waits already goes on waiting: it is one prompt, and counted once."""
        self._skipped += 1
        self._deferred.setdefault(group.key, Deferred(group=group, until=step + self._selection.defer_steps))

    def _as_deferred(self, group: PromptGroup) -> PromptGroup:
        """The group as which the prompt waits, if it does: it is one prompt, and counted once."""
        waiting = self._deferred.pop(group.key, None)
        return group if waiting is None else waiting.group

    def group_ended(self, group: PromptGroup, outcome: GroupOutcome) -> None:
        if self._is_on and outcome.metrics:
            self.history.observe(group.key, outcome.metrics, outcome.response_lens_tok)

    def closed(self, record: RoundRecord, versions: VersionShares) -> dict[str, float]:
        skipped, self._skipped = self._skipped, 0
        return {"selection/skipped_prompts": skipped}

    def state(self) -> bytes:
        return to_bytes(HistoryState(counts=dict(self.history.counts), deferred=self.deferred))

    def restore(self, state: bytes) -> None:
        held = from_bytes(HistoryState, state)
        self.history.restore(held.counts)
        self._deferred = {one.group.key: one for one in held.deferred}

    @property
    def deferred(self) -> tuple[Deferred, ...]:
        return tuple(self._deferred.values())
