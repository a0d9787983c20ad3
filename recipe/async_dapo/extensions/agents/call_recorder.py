"""The record of a trajectory with its calls: what its loop asks of anything but the model (`core/journal.py`)."""

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ...core.journal import SCORE, Call
from ...core.round import GroupEvent
from ...core.trajectory import BrokenRecord, Trajectory, Turn
from ...recording import TrajectoryRecorder, prompt_digest
from .in_calls import InCalls

_own_turns: ContextVar[int] = ContextVar("own_turns", default=0)  # last turn of the running task, from 1; 0: none


@dataclass(slots=True, kw_only=True)
class CallRecorder(TrajectoryRecorder):
    """Also replays recorded calls, and records new ones.

    Calls are found by what the trajectory has generated before them, and by their arguments; those of a loop that asks
    side by side by what the task that makes them has generated.
    """

    in_calls: InCalls  # open while a call is under way
    attempt: str = ""  # tells its calls from those of an attempt that was thrown away
    open_calls: dict[str, tuple[Call, asyncio.Task[bytes]]] = field(default_factory=dict)  # under way, by their ids
    shared_fields: dict[int, Any] = field(default_factory=dict)  # a `SharedFields` for each `agent_data.extra_fields`
    _same_calls: Counter[tuple[int, str, str]] = field(default_factory=Counter)  # asked for in this run of the loop

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
        turns, calls = self.trajectory.turns, self.trajectory.calls
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
        if self.rests and self.kept_loop is not None:
            await self.kept_loop.next_round()
        turns, order = self.trajectory.turns, dict[int, None]()
        for digest, token_ids, log_probs in answers:
            for number in range(self.next_turn):
                if number not in order and turns[number].is_answer(digest, token_ids, log_probs):
                    order[number] = None
                    break
            else:
                raise BrokenRecord("an answer of an agent loop is in no turn of its record")
        rest = [turn for number, turn in enumerate(turns) if number not in order]
        self.trajectory.turns[:] = [*(turns[number] for number in order), *rest]

    def drop_rest(self) -> None:
        gone = [call_id for call_id, call in self.trajectory.calls.items() if call.turn > self.next_turn]
        self.counts.calls_diverged += len(gone)
        for call_id in gone:
            del self.trajectory.calls[call_id]
        TrajectoryRecorder.drop_rest(self)


def call_digest(context: Iterable[bytes], arguments: bytes) -> str:
    """Tells calls at one place apart: by what the trajectory had generated, and by their arguments."""
    digest = blake2b(digest_size=8)
    for part in (*context, arguments):
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.hexdigest()
