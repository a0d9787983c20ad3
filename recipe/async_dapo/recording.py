"""The record of a trajectory: its turns, token by token, and from which policy version each token is.

    agent loop --prompt--> turn of the record --not there, or unfinished--> a request to an engine
                                  ^                                                 |
                                  +---------- tokens, log-probs, versions ----------+

A stop ends a loop, and it runs again in the next round: turns that are whole are answered from here.
"""

import asyncio
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby
from typing import Any

from .core.round import GroupEvent
from .core.trajectory import BrokenRecord, RoundCounts, Segment, Trajectory, Turn


def prompt_digest(prompt_ids: Sequence[int], pictures: Iterable[Any] = ()) -> bytes:
    hasher = blake2b(array("i", prompt_ids).tobytes(), digest_size=16)
    for picture in pictures:
        hasher.update(picture.tobytes())
    return hasher.digest()


@dataclass(slots=True, kw_only=True)
class TrajectoryRecorder:
    """The record of a trajectory, for one run of its agent loop: replays recorded turns, then records new ones.

    A loop that asks for another prompt than the recorded one (a tool that answers differently the second time), or
    ends before it, leaves the record there: what follows is generated anew, or belongs to nothing.

    A loop may have several requests out at once. One that asks side by side (`is_side_by_side`) may ask in another
    order when it runs again: its recorded turns are found by their prompts, and kept until the loop has ended.
    """

    trajectory: Trajectory
    prompt_uid: str = ""
    runner: Any = None  # the `Loops` of its worker
    next_turn: int = 0
    round_left_tok: float = math.inf  # tokens it may still generate in this round
    counts: RoundCounts = field(default_factory=RoundCounts)
    is_side_by_side: bool = False
    parted_at: bytes | None = None  # the first prompt that was new while recorded ones were left, by its digest
    rests: bool = False  # the round is over for the trajectory: no request may begin
    interrupt: Callable[[], object] = lambda: None  # ends what waits for its loop in this round
    _requests_out: int = 0
    _none_is_out: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._none_is_out.set()

    def begin_round(
        self,
        trajectory: Trajectory,
        *,
        runner: Any,
        limit_tok: int | None,
        notify: Callable[[GroupEvent], None] = lambda event: None,
    ) -> None:
        """A loop starts, or goes on where it was suspended, with the record that has come back.

        Args:
            notify: what a recorder whose calls may take long (`extensions/agents`) calls when the trajectory is idle,
                and when it goes on; this one does not.
        """
        self.trajectory, self.runner, self.rests = trajectory, runner, False
        self.round_left_tok = math.inf if limit_tok is None else limit_tok
        self.counts = RoundCounts()

    def stop(self) -> bool:
        """The round is over for the trajectory. Returns whether a request is out, which will come back by itself."""
        self.rests = True
        return self._requests_out > 0

    @contextmanager
    def request_out(self) -> Iterator[None]:
        """While one of its requests is out; those of one trajectory may overlap."""
        self._requests_out += 1
        self._none_is_out.clear()
        try:
            yield
        finally:
            self._requests_out -= 1
            if not self._requests_out:
                self._none_is_out.set()
                if self.rests and self.is_side_by_side:  # other tasks of the loop may be in code of their own
                    self.interrupt()

    async def all_back(self) -> None:
        """Wait until none of its requests is out: before that, its record is not whole."""
        await self._none_is_out.wait()

    async def next_round(self) -> None:
        """The loop asks for something when the round is over: it ends, and runs again in the next round.

        Raises:
            TrajectoryInterrupted: the first that is raised ends the loop.
        """
        await self.all_back()
        raise TrajectoryInterrupted("the round is over")

    def begin_turn(self, prompt_ids: Sequence[int], pictures: Iterable[Any] = ()) -> Turn:
        """The turn of this request, recorded earlier or new."""
        digest = prompt_digest(prompt_ids, pictures)
        turns, number = self.trajectory.turns, self.next_turn
        rest = range(number, len(turns) if self.is_side_by_side else min(number + 1, len(turns)))
        found = next((place for place in rest if turns[place].prompt_digest == digest), None)
        if found is not None:
            turns.insert(number, turns.pop(found))  # those that were asked for keep their places
        else:
            if not self.is_side_by_side:
                self.drop_rest()
            elif rest and self.parted_at is None:
                self.parted_at = digest
            # Of a loop that asks one thing at a time, until an engine tells its own, which may share them.
            routes = turns[-1].routes if turns and not self.is_side_by_side else None
            turns.insert(number, Turn(prompt_digest=digest, prompt_len_tok=len(prompt_ids), routes=routes))
        self.next_turn += 1
        return turns[number]

    def count(self, counts: Mapping[str, Any]) -> None:
        """What extensions count, see `RoundCounts.of_extensions`; it is summed over a step."""
        self.counts += RoundCounts(of_extensions=dict(counts))

    def lose(self, turn: Turn) -> None:
        """Throw away what an unfinished turn has generated."""
        self.counts.diverged_tok += turn.generated_tok
        turn.segments = []

    def drop_rest(self) -> None:
        """Drop what is recorded and the loop has not asked for: it takes another way, or has ended before it."""
        turns = self.trajectory.turns
        for turn in turns[self.next_turn :]:
            self.counts.diverged_tok += turn.generated_tok
        del turns[self.next_turn :]

    def end(self) -> None:
        """Its loop has ended, and what it has made of its turns is whole."""
        self.counts.end(self.trajectory.turns)


def append_tokens(
    turn: Turn, token_ids: Sequence[int], log_probs: Sequence[float], stamps: Iterable[tuple[int, int]]
) -> None:
    """Add what one request returned, cut into segments by policy version.

    Args:
        token_ids: new tokens.
        log_probs: the engine's log-prob of each [nats].
        stamps: (policy version, number of tokens) in order; sums to len(token_ids).

    Raises:
        BrokenRecord: when they do not.
    """
    start = 0
    for version, num_tokens in stamps:
        end = start + num_tokens
        ids, probs = array("i", token_ids[start:end]), array("f", log_probs[start:end])
        last = turn.segments[-1] if turn.segments else None
        if last is not None and last.policy_version == version:
            ids, probs = array("i", last.token_ids) + ids, array("f", last.rollout_log_probs) + probs
            turn.segments.pop()
        turn.segments.append(Segment(policy_version=version, token_ids=ids, rollout_log_probs=probs))
        start = end
    if not start == len(token_ids) == len(log_probs):
        raise BrokenRecord(f"{len(token_ids)} tokens with {len(log_probs)} log-probs, and versions of {start}")


class SampledTokens:
    """All that the engines sampled for a trajectory, in order, to find the outputs of its agent loop in it."""

    def __init__(self, turns: Iterable[Turn]) -> None:
        self._ids, self._log_probs, self._versions = array("i"), array("f"), array("i")
        self._next = 0
        self._turns = turns = list(turns)
        self.have_routes = any(turn.routes is not None for turn in turns)
        for segment in (segment for turn in turns for segment in turn.segments):
            self._ids.extend(segment.token_ids)
            self._log_probs.extend(segment.rollout_log_probs)
            self._versions.extend([segment.policy_version] * len(segment.token_ids))

    def stamps_of(self, token_ids: Sequence[int], log_probs: Sequence[float]) -> tuple[tuple[int, int], ...]:
        """(policy version, tokens) of the next output's generated tokens, which are sampled ones in order, with the
        engine's log-probs. A loop may have dropped some of those (cut at its end, or a tool's marker).

        Raises:
            BrokenRecord: if they are not.
        """
        ids, probs = array("i", token_ids), array("f", log_probs)
        versions = self._run_of(ids, probs) or self._one_by_one(ids, probs)
        return tuple((version, len(list(same))) for version, same in groupby(versions))

    def timed_since(self, start: int) -> list[list[Any]]:
        """Of each turn with tokens that were found from there on, its requests, see `Timed`; as plain lists."""
        found, end = list[list[Any]](), 0
        for turn in self._turns:
            begin, end = end, end + turn.generated_tok
            if turn.timed and begin < self.found_tok and end > start:
                found.append([list(one) for one in turn.timed])
        return found

    @property
    def found_tok(self) -> int:
        """How many of the tokens have been passed."""
        return self._next

    def _run_of(self, ids: array, log_probs: array) -> array:
        """Versions, if the tokens follow the ones found last without a gap; else nothing."""
        start, end = self._next, self._next + len(ids)
        if self._ids[start:end] != ids or self._log_probs[start:end].tobytes() != log_probs.tobytes():  # also of a NaN
            return array("i")
        self._next = end
        return self._versions[start:end]

    def _one_by_one(self, ids: array, log_probs: array) -> array:
        """A token is the next sampled one with its id and its log-prob; a NaN is the same as another one."""
        versions = array("i")
        for token in zip(ids, log_probs, strict=True):
            while self._next < len(self._ids) and not self._is_next(*token):
                self._next += 1
            if self._next == len(self._ids):
                raise BrokenRecord(
                    "an output has tokens that no engine sampled, or in another order, or with other log-probs"
                )
            versions.append(self._versions[self._next])
            self._next += 1
        return versions

    def _is_next(self, token_id: int, log_prob: float) -> bool:
        sampled = self._log_probs[self._next]
        is_same = sampled == log_prob or (math.isnan(sampled) and math.isnan(log_prob))
        return is_same and self._ids[self._next] == token_id


current_recorder: ContextVar[TrajectoryRecorder | None] = ContextVar("current_recorder", default=None)


class TrajectoryInterrupted(asyncio.CancelledError):
    """The round is over for a trajectory; what it has generated is in its record.

    A cancellation, so that agent loops that catch `Exception` do not swallow it, and the rest of its group goes on.
    """
