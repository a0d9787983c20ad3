"""vLLM's schedulers, of which each step is noted: how many requests it has preempted.

vLLM's own statistics tell of a preemption when the request runs again, which may be many steps later. An engine's
process loads one of these by its name (`scheduler_cls`).
"""

import os
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

FILE_VARIABLE = "ASYNC_DAPO_COUNTED_STEPS"  # names the file; a line for each step


class _Noted(Scheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps = Path(os.environ[FILE_VARIABLE])
        self._steps.write_text("")

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        step = super().schedule(*args, **kwargs)
        with self._steps.open("a", encoding="ascii") as file:
            file.write(f"{len(step.preempted_req_ids or ())}\n")
        return step


class CountedScheduler(_Noted):
    """Of an engine that schedules a step when the one before it has ended."""


class CountedAsyncScheduler(_Noted, AsyncScheduler):
    """Of one that schedules a step while the one before it runs."""
