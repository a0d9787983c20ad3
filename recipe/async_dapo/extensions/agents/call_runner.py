"""Calls of agent loops, each in a task of its own that goes on when the stop ends its loop."""

import asyncio
import contextvars
import functools
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec
from ray.exceptions import ObjectLostError, RayActorError

from ...calls import RecordedError, WhenUnknown, running_call_id
from ...config.extensions import AGENTS
from ...core.trajectory import RoundCounts, Trajectory
from ...core.users_errors import Cause, KnownPlaces, TrajectoryFailed, describe, user_traceback
from ...record.call_figures import CallFigures
from ...record.plain_values import AGENT_LOOP, NestedTooDeep, read_extension, to_plain
from ...recording import TrajectoryRecorder, current_recorder
from ...rollout.agent_loops import Loops
from ...runtime.actor_watch import ActorDied
from ...runtime.containment import called_on_thread, value_of
from ...runtime.time_limit import LimitReached, within
from .call_recorder import CallRecorder, NoRecord
from .counts import CallCounts, IdleTrajectories
from .in_calls import InCalls
from .journal import Call, Policy

logger = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ext_hook=read_extension).decode

T = TypeVar("T")

Work = Callable[[Call], Coroutine[Any, Any, bytes]]


class CallRunner(Loops):
    """Makes the calls of a worker's trajectories, and keeps what goes on after the stop.

    Args:
        timeout_s: longest time a call may take [s].
        journal_limit_bytes: most that a trajectory's journal may hold.
        promise: makes of a call's id what can be awaited anywhere, and calls `result_of` here.
        worker: its number.
        short_s: waits for calls that are shorter are not reported [s].
        carries: calls go on when the stop interrupts their trajectories; else nothing of these is kept, and they end.
        cut: cuts what a call has raised as answers are cut: a loop may have it tokenized, and trained on.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        journal_limit_bytes: int,
        promise: Callable[[str], Any],
        worker: int = 0,
        short_s: float = 1.0,
        carries: bool = True,
        cut: Callable[[str], str] = str,
    ) -> None:
        super().__init__(timeout_s)
        self._timeout_s = timeout_s
        self._short_s = short_s
        self._limit_bytes = journal_limit_bytes
        self._promise = promise
        self._worker = worker
        self._idle = IdleTrajectories()
        self.late_counts = RoundCounts()  # in no report yet
        self._carries = carries
        self._cut = cut
        self._promised: dict[str, asyncio.Task[bytes]] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._logged = KnownPlaces()

    def recorder(self, trajectory: Trajectory, *, prompt_uid: str, attempt: str) -> CallRecorder:
        in_calls = InCalls(self._short_s, self._idle)
        return CallRecorder(trajectory=trajectory, prompt_uid=prompt_uid, attempt=attempt, in_calls=in_calls)

    def take_counts(self) -> RoundCounts:
        """Of what went on when its trajectory's round was over, and of all that waited for calls."""
        counts, self.late_counts = self.late_counts, RoundCounts()
        if samples := self._idle.take():
            counts += RoundCounts(of_extensions={AGENTS: CallCounts(idle={self._worker: samples})})
        return counts

    async def call(
        self,
        recorder: TrajectoryRecorder,
        name: str,
        arguments: dict[str, Any],
        make: Callable[[], Any],
        *,
        about: Any = None,
    ) -> Any:
        """The call's result: the recorded one, that of the call while it runs on, or that of a new call."""
        assert isinstance(recorder, CallRecorder)
        policy = Policy.of(about)
        await recorder.is_here()
        try:
            call, is_new = recorder.begin_call(name, plain_bytes(arguments))
            is_answer_new = call.result is None
            if call.result is not None or call.pending is not None:
                recorder.note(replayed=1)
            if call.result is None:
                with recorder.in_calls:
                    plainly = functools.partial(Loops.call, self, recorder, name, arguments, make)
                    work = functools.partial(self._limited, plainly)
                    call = await self._resolve(recorder, call, work, is_new=is_new, policy=policy)
            assert call.result is not None
            answer = _decode(call.result)
            if "given_up" in answer:
                reason, summary = answer["given_up"]
                raise TrajectoryFailed(reason, Cause(summary))
            if recorder.journal.size_bytes > self._limit_bytes:
                what = f"with a call of {call.name} there are more than {self._limit_bytes >> 20} MiB of calls"
                raise TrajectoryFailed("journal_full", Cause(what))
        except Exception as error:  # none of the call's own: that is an answer
            is_policy_s = isinstance(error, NestedTooDeep)
            recorder.given_up = TrajectoryFailed("nested_too_deep", Cause(str(error))) if is_policy_s else error
            raise asyncio.CancelledError(str(error)) from error  # loops turn other errors into text for the model
        seconds = answer.get("seconds", 0.0)
        recorder.calls_s += seconds
        if is_answer_new:
            has_failed = answer["error"] is not None
            figures = {call.name: CallFigures.of(seconds, is_failed=has_failed)}
            recorder.note(answered=1, failed=int(has_failed), by_name=figures)
        if answer["error"] is not None:
            raise RecordedError(answer["error"])
        return answer["value"]

    async def score(
        self,
        recorder: TrajectoryRecorder,
        responses: Sequence[Sequence[int]],
        make: Callable[[], Coroutine[Any, Any, Any]],
    ) -> Any:
        """What `make` says of these responses. It is in the journal only if a stop has interrupted it: it goes on then,
        and is answered from there if the loop comes to the same responses again. An error is raised as it is, and
        never recorded.
        """
        assert isinstance(recorder, CallRecorder)
        calls = recorder.journal.calls
        if any(call.is_score for call in calls.values()):
            call = calls.get(recorder.score_id(responses))
            if call is not None and call.pending is not None:
                call.result, call.pending = await _await_carried(call), None
            if call is not None and call.result is not None:
                recorder.note(replayed=1)
                return _decode(call.result)
        scoring = self._owned(make())
        try:
            return await asyncio.shield(scoring)
        except asyncio.CancelledError:
            if recorder.rests and self._carries:
                call = Call(call_id=recorder.score_id(responses), turn=recorder.next_turn, arguments=b"")
                recorder.journal.calls[call.call_id] = call
                self._carry(recorder, call, self._owned(_encoded(scoring)))
            else:
                scoring.cancel()
            raise

    def carry(self, recorder: CallRecorder) -> None:
        """The calls of a trajectory that is interrupted go on; where it is continued they can be waited for."""
        for call, task in recorder.open_calls.values():
            if call.pending is None and not task.done():
                self._carry(recorder, call, task)

    def _carry(self, recorder: CallRecorder, call: Call, task: asyncio.Task[bytes]) -> None:
        recorder.note(carried=1)
        self._promised[call.call_id] = task
        call.pending = self._promise(call.call_id)

    def _owned(self, work: Coroutine[Any, Any, T], context: contextvars.Context | None = None) -> asyncio.Task[T]:
        """In a task that no stop ends."""
        task = asyncio.create_task(work, context=context)
        self._running.add(task)
        task.add_done_callback(self._forget)
        return task

    async def result_of(self, call_id: str) -> bytes | None:
        """What a call that ran on came to; None if it has to be made again."""
        task = self._promised.pop(call_id)
        await asyncio.wait([task])
        return None if task.cancelled() or task.exception() is not None else task.result()

    async def _resolve(self, recorder: CallRecorder, call: Call, work: Work, *, is_new: bool, policy: Policy) -> Call:
        """Bring a call that has no result yet to its result. Returns it as the record has it by then."""
        if call.pending is not None:
            result = await _await_carried(call)
            call = await self._current(recorder, call)
            call.result, call.pending = result, None
        if call.result is None:
            await self._check_goes_on(recorder, call, is_new=is_new)
            result = await self._recover(recorder, call, policy, is_new=is_new)
            call = await self._current(recorder, call)
            call.result = result
        if call.result is None:
            await self._check_goes_on(recorder, call, is_new=is_new)
            await self._make(recorder, call, work(call))
        return call

    async def _current(self, recorder: CallRecorder, call: Call) -> Call:
        """The same call after a wait. Rounds may have ended and begun meanwhile, and a kept loop outlives them: the
        record that comes back to it has another object for the call.
        """
        await recorder.is_here()
        return recorder.journal.calls[call.call_id]

    async def _check_goes_on(self, recorder: CallRecorder, call: Call, *, is_new: bool) -> None:
        """No call begins after the stop. Its error may end the loop, so requests of other tasks come back before it."""
        if recorder.rests:
            if is_new:
                del recorder.journal.calls[call.call_id]
            await recorder.all_back()
            raise asyncio.CancelledError("stopped before a call")

    async def _make(self, recorder: CallRecorder, call: Call, work: Coroutine[Any, Any, bytes]) -> None:
        recorder.note(made=1)
        context = contextvars.copy_context()
        context.run(current_recorder.set, NoRecord(call_id=call.call_id))
        context.run(running_call_id.set, call.call_id)
        task = self._owned(work, context)
        recorder.open_calls[call.call_id] = (call, task)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if recorder.rests and self._carries:
                self.carry(recorder)
            else:
                task.cancel()  # the loop, or the whole group, has given the call up, or starts again
            raise
        finally:
            del recorder.open_calls[call.call_id]

    async def _limited(self, answer: Callable[[], Awaitable[Any]], call: Call) -> bytes:
        """What the call came to, an error included."""
        started_s = time.monotonic()
        error: str | None = None
        value: Any = None
        try:
            value = await answer()
        except TrajectoryFailed as failed:
            return _encode_given_up(call, failed.reason, failed.cause)
        except RecordedError as failed:
            raised, error = failed.__cause__, str(failed)
            if raised is None or isinstance(raised, LimitReached):
                self._log_failed(call, Cause(error))
            else:
                error = self._cut(error)
                self._log_failed(call, Cause(describe(raised), user_traceback(raised)))
        return _encode_result(call, error, value, seconds=time.monotonic() - started_s)

    async def _recover(self, recorder: CallRecorder, call: Call, policy: Policy, *, is_new: bool) -> bytes | None:
        """What a call came to that may have happened; None if it is to be made.

        Raises:
            TrajectoryFailed: if it must not be made, and what it came to is unknown.
        """
        if is_new and not recorder.trajectory.is_restored:
            return None
        if not is_new:
            recorder.note(unknown=1)
        if policy.recover is not None:
            recover = functools.partial(policy.recover, call.call_id)
            if not inspect.iscoroutinefunction(policy.recover):
                recover = functools.partial(on_thread, recover)  # it may block, as a database's client does
            return await self._ask_recover(call, recover)
        if not is_new and policy.when_unknown is WhenUnknown.FAIL_TRAJECTORY:
            logger.debug("it is not known whether %s has happened", call.call_id)
            what = f"it is not known whether a call of {call.name} has happened"
            raise TrajectoryFailed("unknown_call", Cause(what))
        return None

    async def _ask_recover(self, call: Call, recover: Callable[[], Any]) -> bytes | None:
        try:
            value = await within(self._timeout_s, value_of(recover))
        except LookupError:
            return None
        except LimitReached:
            logger.debug("recover gave no answer for %s", call.call_id)
            what = f"recover of {call.name} gave no answer within {self._timeout_s} s"
            raise TrajectoryFailed("unknown_call", Cause(what)) from None
        return _encode_result(call, None, value)

    def _log_failed(self, call: Call, cause: Cause) -> None:
        level = logging.WARNING if self._logged.is_new(cause) else logging.DEBUG
        logger.log(level, "a call of %s failed, and its agent loop is told so: %s", call.name, cause.summary)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # what waits for it is told; there may be nothing left that does


def plain_bytes(values: dict[str, Any]) -> bytes:
    """As a record has them.

    Raises:
        ConfigError: for what none can hold.
    """
    return _encode(to_plain(values, source=AGENT_LOOP))


async def _encoded(scoring: Awaitable[Any]) -> bytes:
    return plain_bytes(await scoring)


async def _await_carried(call: Call) -> bytes | None:
    """What a call came to that was carried here; None if it has to be made again."""
    try:
        return await call.pending
    except (RayActorError, ObjectLostError) as error:  # what it owned is lost with it
        raise ActorDied(f"the agent loop worker that made a call of {call.name} is gone: {error}") from error


def _encode_result(call: Call, error: str | None, value: Any, *, seconds: float = 0.0) -> bytes:
    try:
        call.result = plain_bytes({"error": error, "value": value, "seconds": seconds})
    except NestedTooDeep as too_deep:
        return _encode_given_up(call, "nested_too_deep", Cause(str(too_deep)))
    return call.result


def _encode_given_up(call: Call, reason: str, cause: Cause) -> bytes:
    """Its trajectory fails wherever it goes on, and the call is not made again."""
    call.result = _encode({"given_up": [reason, cause.summary]})
    return call.result


async def on_thread(function: Callable[..., T], *args: Any) -> T:
    """What a plain function returns, while the event loop goes on; nothing waits for a thread that never ends."""
    result: Future[T] = Future()

    def work() -> None:
        try:
            result.set_result(called_on_thread(function, *args))
        except BaseException as error:
            result.set_exception(error)

    result.set_running_or_notify_cancel()
    threading.Thread(target=contextvars.copy_context().run, args=[work], daemon=True).start()
    return await asyncio.wrap_future(result)
