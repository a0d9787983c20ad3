"""The processes of a server: their names in messages, and their end when the server has died without them."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import psutil

_LOOK_S = 1.0  # between two looks at who is left: a zombie that nobody reaps would be waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProcesses:
    """A server's process and those of its engine, with the times of their starts: ids are used again."""

    node: str
    pid: int
    started: tuple[tuple[int, float], ...]  # (process id, time of its start), the server's own first

    @classmethod
    def of_this_server(cls, node: str) -> Self:
        """Asked in the server, once its engine runs."""
        own = psutil.Process()
        processes = [own, *own.children(recursive=True)]
        return cls(
            node=node, pid=os.getpid(), started=tuple((process.pid, process.create_time()) for process in processes)
        )

    def __str__(self) -> str:
        return f"node {self.node}, pid {self.pid}"

    def end(self, *, timeout_s: float) -> None:
        """Kill those that still run; called on their node. An engine outlives a server that was killed, and keeps its
        accelerator memory, which training needs.

        Args:
            timeout_s: for the kernel to take them down, their accelerator memory included [s].

        Raises:
            TimeoutError: when some still run then.
        """
        deadline = time.monotonic() + timeout_s
        while running := [process for pid, since in self.started if (process := _find(pid, since)) is not None]:
            if (left_s := deadline - time.monotonic()) <= 0:
                pids = ", ".join(str(process.pid) for process in running)
                raise TimeoutError(f"engine processes {pids} on node {self.node} run on {timeout_s} s after their kill")
            for process in running:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(running, timeout=min(left_s, _LOOK_S))


def _find(pid: int, started: float) -> psutil.Process | None:
    """The process, if it still runs."""
    try:
        process = psutil.Process(pid)
        is_same = process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE
        return process if is_same else None
    except psutil.NoSuchProcess:
        return None
