"""Agent loops that outlive the stop in their worker.

A loop that has a state of its own says so: `keeps_state = True`, or `replayable = False`; one that could not get on
if it ran again each round `always_kept = True`: of these a worker keeps as many as there are.

    round's task --outputs--> loop's task: run()
        stop           the loop comes to rest in its next `generate` or `recorded`; its record goes to the pool
        next round     here: the record comes back, and the loop goes on from where it rests
                       elsewhere, after a kill, or with too many of them: it runs again over its record; one that
                       is not replayable is gone, and its group is retired

The record is the truth in either case: what is in it, and nothing else, is in a checkpoint.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from ...core.trajectory import Suspension, Trajectory
from ...core.users_errors import Cause, TrajectoryFailed
from ...recording import TrajectoryInterrupted, TrajectoryRecorder, current_recorder
from ...rollout.agent_loops import has_state, run_loop
from ...runtime.aio import run_to_completion
from .call_recorder import CallRecorder

logger = logging.getLogger(__name__)

END_TIMEOUT_S = 60.0  # for a loop to clean up


def is_replayable(agent_loop: AgentLoopBase) -> bool:
    """Whether it can be brought to where it was interrupted, by its record."""
    return bool(getattr(agent_loop, "replayable", True))


class KeptLoop:
    """One loop that outlives the round, in a task that belongs to no round.

    Args:
        recorder: of its trajectory, in every round.
        outputs: its `run`.
        is_bounded: it counts among those that a worker keeps at most.
    """

    def __init__(
        self,
        recorder: CallRecorder,
        outputs: Coroutine[Any, Any, list[AgentLoopOutput]],
        *,
        is_bounded: bool = True,
    ) -> None:
        self.recorder = recorder
        self.is_bounded = is_bounded
        self._opened = asyncio.Event()
        self._resting = asyncio.Event()
        self._is_ended = False
        self._task = asyncio.create_task(outputs, name=f"kept loop of {recorder.prompt_uid}")

    async def outputs(self) -> list[AgentLoopOutput]:
        """Let it go on in this round.

        Raises:
            TrajectoryInterrupted: when it has come to rest.
        """
        self._resting.clear()
        self._opened.set()
        resting = asyncio.create_task(self._rests())
        try:
            await asyncio.wait({self._task, resting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            resting.cancel()
        if not self._task.done():
            raise TrajectoryInterrupted("its loop rests")
        return self._task.result()

    async def _rests(self) -> None:
        """Until it has come to rest, with no request of another of its tasks out."""
        await self._resting.wait()
        await self.recorder.all_back()

    async def next_round(self) -> None:
        """Called by the loop's own requests and calls: none may touch the record before it has come back."""
        while not self._is_ended:  # else it cleans up
            self._opened.clear()
            self._resting.set()
            await self._opened.wait()
            if not self.recorder.rests:
                return
        raise asyncio.CancelledError("stopped before a call")

    def suspend(self) -> None:
        """Its record is taken away."""
        self._opened.clear()
        self.recorder.stop()
        self.recorder.runner.carry(self.recorder)

    async def end(self) -> None:
        self._is_ended = True
        self._task.cancel()
        await asyncio.wait([self._task], timeout=END_TIMEOUT_S)
        if not self._task.done():
            name = self.recorder.prompt_uid
            logger.warning("an agent loop of prompt %s has not ended in %.0f s of being cancelled", name, END_TIMEOUT_S)
        elif not self._task.cancelled():
            self._task.exception()  # raised again where its trajectory is continued


async def outputs_of(recorder: CallRecorder, outputs: Awaitable[list[AgentLoopOutput]]) -> list[AgentLoopOutput]:
    """What a loop returns.

    Raises:
        ConfigError, TrajectoryFailed: also where the loop would go on after them.
    """
    try:
        returned = await outputs
    finally:
        if recorder.given_up is not None:
            raise recorder.given_up
    for shared in recorder.shared_fields.values():
        for output in returned:
            shared.drop_live(output.extra_fields)
    return returned


class KeptLoops:
    """The loops of a worker, some of which rest there between rounds.

    Args:
        worker: its number.
        most: loops that are kept over a stop, without those that always are [count]; 0: none is.
    """

    def __init__(self, *, worker: int = 0, most: int = 0) -> None:
        self._worker = worker
        self._most = most
        self._names = count()
        self._resting: dict[str, KeptLoop] = {}

    def recorder_of(self, trajectory: Trajectory) -> CallRecorder | None:
        """Of the loop that rests here since the trajectory was interrupted, if it does."""
        suspension = trajectory.suspension
        loop = None if suspension is None else self._resting.get(suspension.name)
        return None if loop is None else loop.recorder

    async def run(
        self, make: Callable[[], AgentLoopBase], sampling_params: dict[str, Any], **sample: Any
    ) -> list[AgentLoopOutput]:
        """Run the loop of the current trajectory, or let it go on."""
        recorder = current_recorder.get()
        assert isinstance(recorder, CallRecorder)
        journal = recorder.journal
        if journal.suspension is not None:  # it goes on here, with its loop or without
            self._resting.pop(journal.suspension.name, None)
            journal.suspension = None
        if recorder.kept_loop is None:
            agent_loop = make()
            if recorder.trajectory.is_lost:
                raise TrajectoryFailed("state_lost", Cause("an agent loop that cannot run again is gone"))
            journal.is_replayable = is_replayable(agent_loop)
            recorder.is_side_by_side = getattr(agent_loop, "side_by_side", False)
            running = run_loop(agent_loop, sampling_params, **sample)
            if self._most and has_state(agent_loop):
                is_bounded = not getattr(agent_loop, "always_kept", False)
                recorder.kept_loop = KeptLoop(recorder, running, is_bounded=is_bounded)
        return await outputs_of(recorder, running if recorder.kept_loop is None else recorder.kept_loop.outputs())

    async def settle(self, recorder: TrajectoryRecorder) -> None:
        """The round is over for a trajectory: its loop rests if it is to go on and there is room, else it ends."""
        assert isinstance(recorder, CallRecorder)
        loop, trajectory = recorder.kept_loop, recorder.trajectory
        if loop is None or trajectory.is_finished:
            return
        bounded = sum(other.is_bounded for other in self._resting.values())
        if not recorder.rests or (loop.is_bounded and bounded >= self._most):
            await run_to_completion(loop.end(), timeout_s=2 * END_TIMEOUT_S)
            return
        loop.suspend()
        name = f"{self._worker}-{next(self._names)}"
        self._resting[name] = loop
        recorder.journal.suspension = Suspension(worker=self._worker, name=name)
        recorder.note(kept_loops=1)

    async def end_others(self, wanted: frozenset[str]) -> None:
        """End the loops that are not wanted any more: their trajectories went elsewhere, or are gone."""
        others = [self._resting.pop(name) for name in self._resting.keys() - wanted]
        async with asyncio.TaskGroup() as tasks:
            for loop in others:
                tasks.create_task(loop.end())
