"""What one prompt group has generated so far: groups of trajectories, turns and segments.

A trajectory is recorded as the turns its agent loop asked the engines for. An interrupted trajectory is resumed by
running its agent loop again over the recorded turns: finished turns are answered from the record, the unfinished one
is continued from its tokens. A single-turn loop has one turn.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .failures import Cause


class BrokenRecord(RuntimeError):
    """An engine's answer has a token without log-prob or policy version: no prompt is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive tokens that one policy version sampled."""

    policy_version: int
    token_ids: Sequence[int]  # array of typecode "i"; a range where only the number of tokens matters
    rollout_log_probs: Sequence[float]  # array of typecode "f", nats, the engine's own, same length as token_ids

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.rollout_log_probs):
            raise BrokenRecord(f"{len(self.token_ids)} tokens with {len(self.rollout_log_probs)} log-probs")

    @property
    def counts(self) -> "Segment":
        """The same without the tokens."""
        tokens = range(len(self.token_ids))
        return Segment(policy_version=self.policy_version, token_ids=tokens, rollout_log_probs=tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """An unfinished request that is still in its engine, frozen with its KV cache, and the lease it holds."""

    server_id: str
    lease_id: str


@dataclass(slots=True, kw_only=True)
class Turn:
    """One request of an agent loop to the engines, whole or interrupted."""

    prompt_digest: bytes
    prompt_len_tok: int
    segments: list[Segment] = field(default_factory=list)
    finish_reason: str | None = None  # the engine's own word; None while the turn is unfinished
    attachment: Attachment | None = None
    counts: Counter[str] = field(default_factory=Counter)  # what engines say of its requests; not in checkpoints

    @property
    def generated_tok(self) -> int:
        return sum(len(segment.token_ids) for segment in self.segments)

    @property
    def raw_response_ids(self) -> list[int]:
        """Tokens generated so far, all segments."""
        return [token for segment in self.segments for token in segment.token_ids]

    @property
    def rollout_log_probs(self) -> list[float]:
        """Behaviour log-probs of `raw_response_ids`, concatenated over stages (CoPRIS, arXiv:2511.05589, eq. 6)."""
        return [log_prob for segment in self.segments for log_prob in segment.rollout_log_probs]


@dataclass(slots=True, kw_only=True)
class Trajectory:
    """One of the n responses of a prompt group."""

    session_id: int
    age: int = 0  # rounds it was carried over unfinished
    turns: list[Turn] = field(default_factory=list)
    outputs: Any = None  # the agent loop's scored outputs once finished; opaque to core
    finished_stamps: tuple[tuple[int, int], ...] = ()  # see `stamps`, kept when the turns are gone

    @property
    def is_finished(self) -> bool:
        return self.outputs is not None

    @property
    def has_started(self) -> bool:
        return self.is_finished or bool(self.turns)

    @property
    def stamps(self) -> tuple[tuple[int, int], ...]:
        """(policy version, generated tokens) of every segment, in order."""
        if self.is_finished:
            return self.finished_stamps
        return tuple(
            (segment.policy_version, len(segment.token_ids)) for turn in self.turns for segment in turn.segments
        )

    @property
    def generated_tok(self) -> int:
        return sum(num_tokens for _, num_tokens in self.stamps)

    def finish(self, outputs: Any) -> None:
        """Keep the scored outputs, which hold all tokens, in place of the turns."""
        self.finished_stamps = self.stamps
        self.turns = []
        self.outputs = outputs

    @property
    def raw_response_ids(self) -> list[int]:
        return [token for turn in self.turns for token in turn.raw_response_ids]

    def keep_counts(self) -> None:
        """Let go of its tokens, but not of their numbers."""
        for turn in self.turns:
            turn.segments = [segment.counts for segment in turn.segments]
        if self.is_finished:
            self.outputs = True

    def restart(self) -> int:
        """Throw away all it has generated. Returns the number of tokens lost."""
        lost_tok = self.generated_tok
        self.turns, self.outputs, self.finished_stamps, self.age = [], None, (), 0
        return lost_tok


@dataclass(slots=True, kw_only=True)
class PromptGroup:
    """The n trajectories of one prompt, and the prompt's row of the data set."""

    uid: str
    prompt: dict[str, Any]
    drawn_at_step: int
    trajectories: list[Trajectory]
    is_certain: bool = False  # two of its finished trajectories differ: it will be valid
    key: str = ""  # the prompt's name over all its visits
    deferred_until: int = 0  # step in which it is drawn at the latest
    parked: Any = None  # where its tokens are, if they are not here; opaque to core

    @property
    def age(self) -> int:
        return max(trajectory.age for trajectory in self.trajectories)

    @property
    def generated_tok(self) -> int:
        return sum(trajectory.generated_tok for trajectory in self.trajectories)

    @property
    def has_started(self) -> bool:
        return any(trajectory.has_started for trajectory in self.trajectories)

    @property
    def unfinished(self) -> list[Trajectory]:
        return [trajectory for trajectory in self.trajectories if not trajectory.is_finished]

    def versions(self) -> set[int]:
        """Policy versions that sampled any of its tokens."""
        return {version for trajectory in self.trajectories for version, _ in trajectory.stamps}

    def attachments(self) -> list[Attachment]:
        """Its requests that are still in an engine."""
        turns = (turn for trajectory in self.trajectories for turn in trajectory.turns)
        return [turn.attachment for turn in turns if turn.attachment is not None]

    def detach(self) -> None:
        """Forget requests of engines that are gone: they are continued by a new prefill."""
        for trajectory in self.trajectories:
            for turn in trajectory.turns:
                turn.attachment = None

    def park(self, place: Any) -> None:
        """Keep how much it has generated, but not the tokens: they are in `place`."""
        self.parked = place
        for trajectory in self.trajectories:
            trajectory.keep_counts()

    def restart(self) -> int:
        """Throw away all the group has generated. Returns the number of tokens lost."""
        self.is_certain, self.parked = False, None
        return sum(trajectory.restart() for trajectory in self.trajectories)


class Verdict(StrEnum):
    """How a prompt group ended in a round."""

    VALID = "valid"  # complete, and its metric varies: it can be trained on
    FILTERED = "filtered"  # complete, but every trajectory has the same metric: no gradient
    SCREENED = "screened"  # its first samples have the same metric: the others were never started
    FAILED = "failed"  # a trajectory failed for good; `reason` says why
    SET_ASIDE = "set_aside"  # interrupted by the round's limits: continued in a later round


JUDGED = (Verdict.VALID, Verdict.FILTERED, Verdict.SCREENED)  # every trajectory that was started has been scored


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome:
    """A worker's report that a prompt group has ended."""

    prompt_uid: str
    verdict: Verdict
    reason: str = ""
    cause: Cause | None = None  # of a failed group: that of its first trajectory that failed
    response_lens_tok: tuple[int, ...] = ()  # generated tokens of each trajectory; of a screened group, of its samples
    oldest_version: int | None = None  # of all generated tokens of the group
    newest_version: int | None = None
    scored: int = 0  # trajectories [count]
    failed: int = 0  # trajectories that failed for good; their siblings were interrupted [count]
    metrics: tuple[float, ...] = ()  # of its trajectories, where it was judged by them
    is_kept: bool = False  # screening would have ended it, had it not been drawn to be kept

    @classmethod
    def of(
        cls,
        group: PromptGroup,
        verdict: Verdict,
        *,
        reason: str = "",
        cause: Cause | None = None,
        failed: int = 0,
        metrics: Sequence[float] = (),
        is_kept: bool = False,
    ) -> "GroupOutcome":
        """The report of a group with what it has generated so far; of a screened one without what never started."""
        versions = group.versions()
        counted = [one for one in group.trajectories if verdict is not Verdict.SCREENED or one.is_finished]
        return cls(
            prompt_uid=group.uid,
            verdict=verdict,
            reason=reason,
            cause=cause,
            response_lens_tok=tuple(trajectory.generated_tok for trajectory in counted),
            oldest_version=min(versions, default=None),
            newest_version=max(versions, default=None),
            scored=len(group.trajectories) - len(group.unfinished),
            failed=failed,
            metrics=tuple(metrics),
            is_kept=is_kept,
        )


class CauseCounts:
    """What groups fail of, by place: of errors that name their prompt the first one stands for all raised there."""

    def __init__(self) -> None:
        self._examples: dict[str, str] = {}

    def count(self, outcomes: Iterable[GroupOutcome]) -> Counter[tuple[str, str]]:
        """Failed groups by reason and cause, in one line each; the cause is empty where it is unknown."""
        failed = (outcome for outcome in outcomes if outcome.verdict is Verdict.FAILED)
        return Counter((outcome.reason, self._example(outcome.cause)) for outcome in failed)

    def _example(self, cause: Cause | None) -> str:
        return "" if cause is None else self._examples.setdefault(cause.place, cause.summary)
