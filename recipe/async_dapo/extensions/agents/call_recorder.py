"""The record of a trajectory with its calls: what its loop asks of anything but the model (`journal.py`)."""

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ...config.extensions import AGENTS
from ...config.values import ConfigError
from ...core.round import GroupEvent
from ...core.trajectory import BrokenRecord, RoundCounts, Trajectory, Turn
from ...record.call_figures import CallFigures
from ...record.plain_values import AGENT_LOOP
from ...recording import TrajectoryRecorder, prompt_digest
from .counts import CallCounts
from .in_calls import InCalls
from .journal import SCORE, Call, Journal, name_of

_own_turns: ContextVar[int] = ContextVar("own_turns", default=0)  # last turn of the running task, from 1; 0: none


@dataclass(slots=True, kw_only=True)
class CallRecorder(TrajectoryRecorder):
    """Also replays recorded calls, and records new ones.

    Calls are found by what the trajectory has generated before them, and by their arguments; those of a loop that asks
    side by side by what the task that makes them has generated.
    """

    in_calls: InCalls  # open while a call is under way
    attempt: str = ""  # tells its calls from those of an attempt that was thrown away
    kept_loop: Any = None  # a `KeptLoop`, where its loop outlives the round
    given_up: Exception | None = None  # why the trajectory cannot go on, even if its loop swallows errors
    calls_s: float = 0.0  # of the calls whose answers the loop has, in whatever round they were made
    open_calls: dict[str, tuple[Call, asyncio.Task[bytes]]] = field(default_factory=dict)  # under way, by their ids
    # Of extensions/tools, a `SharedFields` for each `agent_data.extra_fields`.
    shared_fields: dict[int, Any] = field(default_factory=dict)
    _same_calls: Counter[tuple[int, str, str]] = field(default_factory=Counter)  # asked for in this run of the loop

    @property
    def journal(self) -> Journal:
        return Journal.of(self.trajectory)

    def begin_round(
        self,
        trajectory: Trajectory,
        *,
        runner: Any,
        limit_tok: int | None,
        notify: Callable[[GroupEvent], None] = lambda event: None,
    ) -> None:
        TrajectoryRecorder.begin_round(self, trajectory, runner=runner, limit_tok=limit_tok)
        self.in_calls.begin_round(notify)

    async def next_round(self) -> None:
        """Where the loop outlives the stop, it goes on when the record has come back."""
        if self.kept_loop is None:
            await TrajectoryRecorder.next_round(self)
        await self.kept_loop.next_round()

    async def is_here(self) -> None:
        """Wait for the record, if a kept loop asks when it has been taken away: nothing may touch it meanwhile."""
        if self.rests and self.kept_loop is not None:
            await self.kept_loop.next_round()

    def count(self, counts: Mapping[str, Any]) -> None:
        """When the trajectory's round is over, as while a score goes on, it is in the worker's next report."""
        if self.rests:
            self.runner.late_counts += RoundCounts(of_extensions=dict(counts))
        else:
            TrajectoryRecorder.count(self, counts)

    def note(self, **counts: Any) -> None:
        """Count calls, by the fields of `CallCounts`."""
        self.count({AGENTS: CallCounts(**counts)})

    def note_own_code(self, name: str, seconds: float, *, is_failed: bool) -> None:
        """Note time that the loop has spent beside its calls, as if that were one."""
        self.calls_s += seconds
        self.note(by_name={name: CallFigures.of(seconds, is_failed=is_failed)})

    def end(self) -> None:
        TrajectoryRecorder.end(self)
        self.note(seconds=self.calls_s)

    def begin_turn(self, prompt_ids: Sequence[int], pictures: Iterable[Any] = ()) -> Turn:
        turn = TrajectoryRecorder.begin_turn(self, prompt_ids, pictures)
        _own_turns.set(self.next_turn)
        return turn

    def begin_call(self, name: str, arguments: bytes) -> tuple[Call, bool]:
        """This call, recorded earlier or new, and whether it is new. Those at one place with the same arguments are
        told apart by their order; others may overtake each other.

        A place is what the trajectory has generated up to here. Of a loop that asks side by side it is what the running
        task has: other tasks may have come further, or less far, when the loop runs again.
        """
        turns, calls = self.trajectory.turns, self.journal.calls
        number_of_last = _own_turns.get() if self.is_side_by_side else self.next_turn
        last = turns[number_of_last - 1] if number_of_last else None
        tokens = [] if last is None else [array("i", segment.token_ids).tobytes() for segment in last.segments]
        context = [] if last is None else [last.prompt_digest, b"".join(tokens)]
        digest = call_digest(context, arguments)
        turn = 0 if self.is_side_by_side else self.next_turn
        place = (turn, name, digest)
        number = self._same_calls[place]
        self._same_calls[place] += 1
        call_id = f"{self.prompt_uid}{self.attempt}/{self.trajectory.session_id}/{turn}/{name}/{digest}/{number}"
        is_new = call_id not in calls
        if is_new:
            calls[call_id] = Call(call_id=call_id, turn=self.next_turn, arguments=arguments)
        return calls[call_id], is_new

    def score_id(self, responses: Iterable[Sequence[int]]) -> str:
        """The id of the call that scores these responses."""
        digest = call_digest([], b"".join(sorted(map(prompt_digest, responses))))
        return f"{self.prompt_uid}{self.attempt}/{self.trajectory.session_id}/0/reward/{digest}/{SCORE}"

    async def put_first(self, answers: Iterable[tuple[bytes, Sequence[int], Sequence[float]]]) -> None:
        """Put the turns of these answers (prompt digest, tokens, log-probs) in front, in this order, in which the
        outputs of a loop are then found among the sampled tokens.

        Raises:
            BrokenRecord: if there is no such turn.
        """
        await self.is_here()
        turns, order = self.trajectory.turns, dict[int, None]()
        for digest, token_ids, log_probs in answers:
            for number in range(self.next_turn):
                if number not in order and is_answer(turns[number], digest, token_ids, log_probs):
                    order[number] = None
                    break
            else:
                raise BrokenRecord("an answer of an agent loop is in no turn of its record")
        rest = [turn for number, turn in enumerate(turns) if number not in order]
        self.trajectory.turns[:] = [*(turns[number] for number in order), *rest]

    def drop_rest(self) -> None:
        calls = self.journal.calls
        gone = [call_id for call_id, call in calls.items() if call.turn > self.next_turn]
        for call_id in gone:
            del calls[call_id]
        if gone:
            self.note(diverged=len(gone))
        TrajectoryRecorder.drop_rest(self)


@dataclass(slots=True, kw_only=True)
class NoRecord(TrajectoryRecorder):
    """What a call finds in place of a record: the calls that it makes are in none, and it may not generate."""

    trajectory: Trajectory = field(default_factory=lambda: Trajectory(session_id=0))
    call_id: str

    def begin_turn(self, prompt_ids: Sequence[int], pictures: Iterable[Any] = ()) -> Turn:
        raise ConfigError(
            AGENT_LOOP,
            name_of(self.call_id),
            "this recorded call calls generate, whose tokens would be in no record: call that in the loop itself",
        )


def is_answer(turn: Turn, digest: bytes, token_ids: Sequence[int], log_probs: Sequence[float]) -> bool:
    """Whether a turn has these tokens with these log-probs, bit by bit: a NaN is the same one, too."""
    if turn.prompt_digest != digest or turn.raw_response_ids != list(token_ids):
        return False
    return array("f", turn.rollout_log_probs).tobytes() == array("f", log_probs).tobytes()


def call_digest(context: Iterable[bytes], arguments: bytes) -> str:
    """Tells calls at one place apart: by what the trajectory had generated, and by their arguments."""
    digest = blake2b(digest_size=8)
    for part in (*context, arguments):
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.hexdigest()
