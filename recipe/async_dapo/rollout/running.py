"""The trajectories of a round on a worker: which run, and who is told what becomes of them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.recording import Recorder
from ..core.trajectory import Attachment


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """What becomes of groups, told by their uids.

    Attributes:
        on_generated: one of its trajectories has been generated to its end.
        on_certain: two of its trajectories differ, and others still run.
        on_waiting: so many more of its trajectories wait for calls, or fewer.
        abandon: takes requests that nobody will continue out of their engines.
    """

    on_generated: Callable[[str], None] = lambda uid: None
    on_certain: Callable[[str], None] = lambda uid: None
    on_waiting: Callable[[str, int], None] = lambda uid, change: None
    abandon: Callable[[list[Attachment]], None] = lambda attachments: None


@dataclass(slots=True)
class RunningTrajectories:
    """The trajectory tasks of a round, so that the stop can end those that no engine will give back."""

    is_stopping: bool = False
    _recorders: dict[asyncio.Task, Recorder] = field(default_factory=dict)

    def add(self, task: asyncio.Task, recorder: Recorder) -> None:
        self._recorders[task] = recorder
        task.add_done_callback(lambda done: self._recorders.pop(done))
        if self.is_stopping:  # its group was handed out just before the stop
            recorder.is_stopping = True
            task.cancel()

    def interrupt(self) -> None:
        """No loop takes another step; a request that is out comes back by itself when the engines stop."""
        self.is_stopping = True
        for task, recorder in list(self._recorders.items()):
            recorder.is_stopping = True
            if not recorder.in_request:
                task.cancel()
