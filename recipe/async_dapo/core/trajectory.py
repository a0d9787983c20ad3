"""What one prompt group has generated so far: groups of trajectories, turns and segments.

A trajectory is recorded as the turns its agent loop asked the engines for. An interrupted trajectory is resumed by
running its agent loop again over the recorded turns: finished turns are answered from the record, the unfinished one
is continued from its tokens. A single-turn loop has one turn. An extension may attach to a trajectory what it keeps of
it beside its turns.
"""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self

from .routes import Routes
from .summed import Summed

SOURCE = "data_source"  # verl's name of the column that says of which data a prompt is
AGENT_COLUMN = "agent_name"  # verl's, too: which agent loop a prompt has


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
    def without_tokens(self) -> "Segment":
        """The same with the number of its tokens only."""
        tokens = range(len(self.token_ids))
        return Segment(policy_version=self.policy_version, token_ids=tokens, rollout_log_probs=tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """Where an interrupted trajectory rests, alive."""

    worker: int
    name: str


class Attachment(Protocol):
    """What an extension keeps of a trajectory beside its turns. It goes where they go."""

    suspension: Suspension | None  # not in checkpoints
    is_replayable: bool  # else the trajectory can go on only where it rests

    @property
    def has_begun(self) -> bool: ...  # there is something to lose

    @property
    def is_needed(self) -> bool: ...  # the trajectory cannot go on in a copy without the extension

    def copied(self) -> Self: ...

    def without_content(self) -> Self:
        """The same, of no size."""

    def to_bytes(self) -> bytes:
        """For a checkpoint. `Declared.attachment` reads it."""


class Timed(NamedTuple):
    """A request to an engine, when it was made, sent to a server, and over: seconds since 1970."""

    server: str  # empty if there was none, as the round stopped or the engine was lost
    asked_s: float
    sent_s: float
    over_s: float
    tokens: int  # that it has generated


@dataclass(slots=True, kw_only=True)
class Turn:
    """What an agent loop has asked the engines for at once, whole or interrupted. It takes a request for each round."""

    prompt_digest: bytes
    prompt_len_tok: int
    segments: list[Segment] = field(default_factory=list)
    finish_reason: str | None = None  # the engine's own word; None while the turn is unfinished
    routes: Routes | None = None  # of its context, prompt included; None without router replay
    counts: Counter[str] = field(default_factory=Counter)  # what engines say of its requests; not in checkpoints
    timed: tuple[Timed, ...] = field(default=(), compare=False)  # its requests; not in checkpoints

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
    attachment: Attachment | None = None
    # From a checkpoint: what its loop has done after that may have happened and is not recorded here.
    is_restored: bool = field(default=False, compare=False)
    outputs: Any = None  # the agent loop's scored outputs once finished; opaque to core
    finished_stamps: tuple[tuple[int, int], ...] = ()  # see `stamps`, kept when the turns are gone

    @property
    def is_finished(self) -> bool:
        return self.outputs is not None

    @property
    def has_started(self) -> bool:
        """Whether it has anything to lose; a turn that no engine has begun is nothing."""
        is_asked = any(turn.segments for turn in self.turns)
        return self.is_finished or is_asked or (self.attachment is not None and self.attachment.has_begun)

    @property
    def suspension(self) -> Suspension | None:
        return None if self.attachment is None else self.attachment.suspension

    @property
    def is_replayable(self) -> bool:
        return self.attachment is None or self.attachment.is_replayable

    @property
    def is_lost(self) -> bool:
        """Whether it cannot go on, as what rested is gone."""
        return not self.is_replayable and self.has_started and self.suspension is None

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
        """Keep the scored outputs, which hold all tokens, in place of all that is recorded."""
        self.finished_stamps = self.stamps
        self.turns, self.attachment = [], None
        self.outputs = outputs

    @property
    def raw_response_ids(self) -> list[int]:
        return [token for turn in self.turns for token in turn.raw_response_ids]

    def copied(self) -> "Trajectory":
        """Turns of its own, and the same tokens."""
        attachment = self.attachment and self.attachment.copied()
        return replace(self, turns=[copy(turn) for turn in self.turns], attachment=attachment)

    def keep_counts(self) -> None:
        """Let go of its tokens, but not of their numbers."""
        for turn in self.turns:
            turn.segments, turn.routes = [segment.without_tokens for segment in turn.segments], None
        self.attachment = self.attachment and self.attachment.without_content()
        if self.is_finished:
            self.outputs = True

    def restart(self) -> int:
        """Throw away all it has generated. Returns the number of tokens lost."""
        lost_tok = self.generated_tok
        self.turns, self.outputs, self.finished_stamps, self.age = [], None, (), 0
        self.attachment, self.is_restored = None, False
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
    parked: Any = None  # where its tokens are, if they are not here; opaque to core

    @property
    def source(self) -> str:
        """Of which data the prompt is."""
        return str(self.prompt.get(SOURCE, ""))

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

    def suspensions(self) -> list[Suspension]:
        """Where trajectories of it rest."""
        return [one.suspension for one in self.trajectories if one.suspension is not None]

    @property
    def is_lost(self) -> bool:
        """Whether some of its trajectories cannot go on."""
        return any(trajectory.is_lost for trajectory in self.trajectories)

    def take_tokens(self) -> "PromptGroup":
        """Let go of its tokens, but not of their numbers. Returns a copy that has them, and that nothing changes any
        more: what goes on writes elsewhere.
        """
        whole = replace(self, trajectories=[trajectory.copied() for trajectory in self.trajectories])
        for trajectory in self.trajectories:
            trajectory.keep_counts()
        return whole

    def again(self, uid: str, *, step: int) -> "PromptGroup":
        """The same prompt as a fresh group, drawn in that step."""
        return PromptGroup(
            uid=uid,
            prompt=self.prompt,
            drawn_at_step=step,
            key=self.key,
            trajectories=[Trajectory(session_id=one.session_id) for one in self.trajectories],
        )

    def restart(self) -> int:
        """Throw away all the group has generated. Returns the number of tokens lost."""
        self.is_certain, self.parked = False, None
        return sum(trajectory.restart() for trajectory in self.trajectories)


@dataclass(slots=True, kw_only=True)
class RoundCounts(Summed):
    """What trajectories have done in a round: their turns, and tokens that were lost or read again."""

    ended: int = 0  # trajectories; the next two are theirs, of whatever round
    turns: int = 0
    turns_tok: int = 0
    diverged_tok: int = 0  # recorded tokens that the loop did not ask for again
    reprefilled_tok: int = 0  # of the contexts of continued requests, without those found
    found_tok: int = 0  # of these contexts, in a cache
    # What extensions have counted: numbers by the metrics that they declare, others that are `Summed` by their names.
    of_extensions: dict[str, Any] = field(default_factory=dict)

    def end(self, turns: Sequence[Turn]) -> None:
        """Count a trajectory that has ended with these turns."""
        self.ended += 1
        self.turns += len(turns)
        self.turns_tok += sum(turn.generated_tok for turn in turns)
